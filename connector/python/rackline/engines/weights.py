"""What stands for the weights of a model: a digest of their files."""

from __future__ import annotations

import hashlib
import pathlib

from rackline.engines.digests import digests
from rackline.engines.settings import SettingsError

SUFFIXES = (".safetensors", ".bin", ".pt", ".gguf")
# How these are computed with, where the model brings that along, and what becomes of images.
BESIDE_WEIGHTS = (
    "hf_quant_config.json",
    "modeling_*.py",
    "configuration_*.py",
    "*processor_config.json",
    "*processing_*.py",
)
# Of a training: no engine loads them.
NO_WEIGHTS = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scheduler.bin")


def digest_of_model(model: str, revision: str | None = None) -> str:
    """A digest of the configuration and the weights of ``model``: a folder, or a repository that is
    in the host's cache of them.

    Raises :class:`SettingsError` when they are not on this host.
    """
    folder = folder_of(model, revision)
    digest = hashlib.sha256()
    config = folder / "config.json"
    if config.is_file():
        digest.update(config.read_bytes())
    update_with_files(digest, folder)
    return f"weights {digest.hexdigest()[:32]}"


def digest_of_folder(model: str) -> str:
    """The same where it is not known which revision of a repository is in use: of a folder only.

    Raises :class:`SettingsError` when it is none.
    """
    if not model or not pathlib.Path(model).is_dir():
        raise SettingsError(
            f"{model!r} is not a folder on this host, and its revision is not known: set "
            '"model_id" to a name that stands for these weights on every host, or start the engine '
            "with a folder"
        )
    return digest_of_model(model)


def folder_of(model: str, revision: str | None) -> pathlib.Path:
    """Where the files of a model are on this host.

    Raises :class:`SettingsError` when they are not there.
    """
    folder = pathlib.Path(model)
    if model and folder.is_dir():
        return folder
    try:
        from huggingface_hub import snapshot_download

        return pathlib.Path(snapshot_download(model, revision=revision, local_files_only=True))
    except Exception as error:
        raise SettingsError(
            f'the files of weights of {model!r} are not on this host ({error}): set "model_id" to a '
            "name that stands for these weights on every host"
        ) from error


def update_with_files(digest: hashlib._Hash, folder: pathlib.Path) -> None:
    """Takes the names and the content of all files of weights, and of what a model brings along to be
    computed with, into ``digest``.

    Raises :class:`SettingsError` when there are none.
    """
    files = [
        file
        for file in sorted(folder.rglob("*"))
        if file.suffix in SUFFIXES and file.name not in NO_WEIGHTS and file.is_file()
    ]
    if not files:
        raise SettingsError(
            f"there are no files of weights in {folder}: set \"model_id\" to a name that stands for "
            "these weights on every host"
        )
    beside = {file for name in BESIDE_WEIGHTS for file in folder.glob(name) if file.is_file()}
    files += sorted(beside)
    for file, content in zip(files, digests(files), strict=True):
        digest.update(f"{file.relative_to(folder)} {content}".encode())
