"""The zoo: architectures of other libraries, built from their configs, and what a selection takes of each.

    python -m tests.zoo                      write `architectures.csv` again, print the counts of each library
    python -m tests.zoo timm swin            only architectures whose library or name contains one of these words

`architectures.py` builds, `outcome.py` and `gradients.py` check the rows of fused projections.
"""
