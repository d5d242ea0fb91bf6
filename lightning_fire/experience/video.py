"""Videos of evaluation episodes."""

import warnings
from pathlib import Path

import gymnasium


def recorded(env: gymnasium.Env, folder: Path) -> gymnasium.wrappers.RecordVideo:
    """Wrap an environment; `start_recording(name)` and `stop_recording()` then write `name.mp4` into a folder.

    Args:
        env: Environment that renders frames, as `Gymnasium(name, options={"render_mode": "rgb_array"})` does.
        folder: Output folder, made if it does not exist.

    Raises:
        ImportError: If moviepy is not installed.
        ValueError: If the environment renders no frames.
    """
    if env.render_mode not in ("rgb_array", "rgb_array_list"):
        raise ValueError(
            "`video_folder` needs an environment that renders frames, such as"
            ' Gymnasium("CartPole-v1", options={"render_mode": "rgb_array"}); its render_mode is'
            f" {env.render_mode!r}"
        )
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Overwriting existing videos")
            return gymnasium.wrappers.RecordVideo(env, str(folder), episode_trigger=lambda number: False)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ImportError(f"`video_folder` needs moviepy: pip install moviepy ({error})") from error
