"""What stands for the weights and for what an engine computes from them, with SGLang's own ServerArgs."""

from __future__ import annotations

from host_pool import mha  # isort: skip

import json
import pathlib
import tempfile
import types
import unittest
from unittest import mock

from rackline.engines.settings import SettingsError
from rackline.sglang import identity
from rackline.sglang.settings import Settings, check_engine
from sglang.srt.server_args import ServerArgs

POOL = {"region": "/dev/dax0.0", "node": 0}


def config(**more) -> types.SimpleNamespace:
    """As much of a HiCacheStorageConfig as is looked at."""
    told = dict(tp_rank=0, tp_size=1, pp_rank=0, pp_size=1, attn_cp_rank=0, attn_cp_size=1)
    told.update(is_mla_model=False, dcp_size=1, should_split_heads=False, **more)
    return types.SimpleNamespace(**told)


class Identity(unittest.TestCase):
    def setUp(self) -> None:
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        kept = self.enterContext(tempfile.TemporaryDirectory())
        self.enterContext(mock.patch.dict("os.environ", {"RACKLINE_CACHE": kept}))
        self.model = self.folder / "model"
        self.model.mkdir()
        (self.model / "config.json").write_text("{}")
        (self.model / "model.safetensors").write_bytes(b"weights")

    def arguments(self, **given) -> ServerArgs:
        return ServerArgs(**{"model_path": str(self.model), **given})

    def fingerprint(self, model_id: str = "", **given) -> str:
        arguments = self.arguments(**given)
        pool = mha()
        return identity.page_model(config(), arguments, model_id, pool, [1], "pages").fingerprint

    def test_every_argument_is_one_of_sglang(self) -> None:
        for name in (*identity._OF_COMPUTING, *identity._OF_COMPUTING_IN_FILES):
            with self.subTest(name):
                self.assertTrue(hasattr(self.arguments(), name))

    def test_what_computes_something_else_does_not_meet(self) -> None:
        seen = {self.fingerprint(): "nothing"}
        self.assertEqual(self.fingerprint(), next(iter(seen)))
        wanted = {"quantization", "kv_cache_dtype", "modelopt_quant", "model_loader_extra_config"}
        self.assertLess(wanted, set(identity._OF_COMPUTING))
        for name in identity._OF_COMPUTING:
            other = self.fingerprint(model_id="", **{name: "another"})
            self.assertNotIn(other, seen, (name, seen.get(other)))
            seen[other] = name

    def test_the_configuration_counts_whatever_the_weights_are_called(self) -> None:
        before = self.fingerprint(model_id="the same")
        (self.model / "config.json").write_text('{"rope_theta": 1}')
        self.assertNotEqual(self.fingerprint(model_id="the same"), before)
        # Weights that are somewhere else only.
        self.fingerprint(model_id="the same", model_path="s3://elsewhere/model")

    def test_files_of_scales_count_by_their_content(self) -> None:
        for name in (
            "quantization_param_path",
            "rl_quant_profile",
            "modelopt_checkpoint_restore_path",
        ):
            with self.subTest(name):
                first, second = self.folder / "a.json", self.folder / "b.json"
                first.write_text(json.dumps({"scale": 1}))
                second.write_text(json.dumps({"scale": 1}))
                one, same = (self.fingerprint("m", **{name: str(at)}) for at in (first, second))
                self.assertEqual(one, same)
                self.assertNotEqual(one, self.fingerprint("m"))
                second.write_text(json.dumps({"scale": 0.25}))
                self.assertNotEqual(one, self.fingerprint("m", **{name: str(second)}))
                # What is none has a name only.
                gone = self.fingerprint("m", **{name: str(self.folder / "gone")})
                self.assertNotIn(gone, (one, self.fingerprint("m")))

    def test_weights_count_by_their_content(self) -> None:
        before = self.fingerprint()
        for file, content in [
            ("model.safetensors", b"other weights"),
            ("config.json", b'{"rope": 2}'),
            ("hf_quant_config.json", b'{"kv_cache_quant_algo": "FP8"}'),
            ("modeling_own.py", b"def forward(): ..."),
        ]:
            (self.model / file).write_bytes(content)
            after = self.fingerprint()
            self.assertNotEqual(before, after, file)
            before = after
        for file in ("training_args.bin", "optimizer.pt", "README.md"):
            (self.model / file).write_bytes(b"of a machine")
            self.assertEqual(self.fingerprint(), before, file)

    def test_weights_that_are_not_those_of_files_need_a_name(self) -> None:
        for load_format in ("dummy", "remote_instance"):
            with self.subTest(load_format):
                with self.assertRaisesRegex(SettingsError, f'{load_format} .*"model_id"'):
                    self.fingerprint(load_format=load_format)
                self.fingerprint("named", load_format=load_format)
        with self.assertRaisesRegex(SettingsError, 'not on this host .*"model_id"'):
            self.fingerprint(model_path=str(self.folder / "gone"))

    def test_lora_needs_the_users_word(self) -> None:
        for given in ({"enable_lora": True}, {"lora_paths": ["one=here"]}):
            with self.subTest(given):
                with self.assertRaisesRegex(SettingsError, "lora_same_everywhere"):
                    check_engine(config(), self.arguments(**given), Settings.of(POOL))
                told = Settings.of({**POOL, "lora_same_everywhere": True})
                check_engine(config(), self.arguments(**given), told)
        check_engine(config(), self.arguments(), Settings.of(POOL))


if __name__ == "__main__":
    unittest.main()
