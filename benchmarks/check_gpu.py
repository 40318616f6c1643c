"""Check the Triton backend on an NVIDIA GPU: its numbers, and that nothing waits or recompiles.

    python benchmarks/check_gpu.py [numbers|behaviour]

For each case, the error of Hugging Face's attention, of the plain PyTorch backend and of the Triton backend against
float64 (the plain backend in that type, on weights and inputs as the smaller type has them). Fails if Triton is more
than 1.2 times as far from it as Hugging Face in bfloat16 or float16, or further than 1e-5 of the scale in float32,
or if plain PyTorch makes no number. Frozen layers in one piece, with LoRA and kernels beside them, are compared with
plain PyTorch in Hugging Face's place, or with the type's own rounding if that is larger.
`make test` runs the same kernels on the CPU, in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from peft import get_peft_model
from rich.console import Console
from torch import Tensor
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, TrainerCallback
from transformers.utils import logging

from prefixprop import PrefixPropagationConfig, PrefixTuningConfig, attention
from prefixprop.backbones import find_backbone
from prefixprop.models import gpu, load_default
from prefixprop.predict.reading import ReadingEncoder
from prefixprop.predict.token_batches import start_classifying
from prefixprop.progress import Progress
from prefixprop.train import RunSettings, text_states, train
from prefixprop.train.text_states import TextStates
from prefixprop.tuners.reader_bank import new_reader

from gpu_numbers import OF_FAMILY, check_numbers, lora


class Quiet(Progress):
    """Drops all notes."""

    def note(self, text: str) -> None:
        pass


PREFIXES = {
    "prefix-propagation": PrefixPropagationConfig,
    "prefix-tuning": PrefixTuningConfig,
    "kernel prefix-propagation": partial(PrefixPropagationConfig, kernel="exp", alpha=0.5),
    "rbf, α per head": partial(PrefixPropagationConfig, kernel="rbf", alpha=0.5, alpha_mode="head"),
    "prefix-propagation + LoRA": lambda **given: PrefixPropagationConfig(lora=lora(), **given),
}


def build_classifiers() -> dict[str, Any]:
    """The same model without a prefix and with each, on the Triton backend, in bfloat16."""
    models: dict[str, Any] = {}
    for family, (name, config) in product(OF_FAMILY, (("no PEFT", None), *PREFIXES.items())):
        torch.manual_seed(0)
        shape = AutoConfig.for_model(
            family, num_hidden_layers=2, hidden_size=256, num_attention_heads=4, intermediate_size=1024,
            vocab_size=100, max_position_embeddings=4098, **({"pad_token_id": 1} | OF_FAMILY[family](256)),
        )  # fmt: skip
        model = AutoModelForSequenceClassification.from_config(shape)
        if config is not None:
            model = get_peft_model(model, config(task_type="SEQ_CLS", num_virtual_tokens=8))
        model = model.cuda().to(torch.bfloat16).eval()
        attention.install(model, backend="triton")
        models[f"{family}, {name}"] = model
    return models


def step(model: Any, length: int) -> Tensor:
    """A training step on a batch that was made before it is looked at; returns the logits."""
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(5, 100, (2, length), generator=generator).cuda()
    labels = torch.zeros(2, dtype=torch.long, device="cuda")
    return run_step(model, tokens, labels)


def run_step(model: Any, tokens: Tensor, labels: Tensor) -> Tensor:
    output = model(input_ids=tokens, labels=labels)
    output.loss.backward()
    return output.logits.detach()


def check_no_sync(model: Any) -> str | None:
    """None, or what waited for the device."""
    tokens = torch.randint(5, 100, (2, 700), device="cuda")
    labels = torch.zeros(2, dtype=torch.long, device="cuda")
    run_step(model, tokens, labels)  # compiles the kernels, which waits
    torch.cuda.set_sync_debug_mode("error")
    try:
        run_step(model, tokens, labels)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def compiled_kernels() -> int:
    from prefixprop.attention.triton import geglu, launch_attention, lora, prefix_part, residual_norm, rope
    from prefixprop.attention.triton.shared import TritonKernel

    modules = (launch_attention, residual_norm, prefix_part, lora, rope, geglu)
    found = [value for module in modules for value in vars(module).values() if isinstance(value, TritonKernel)]
    return sum(len(kernel._compiled) for kernel in found)


def check_no_recompilation(model: Any) -> str | None:
    step(model, 700)
    before = compiled_kernels()
    for length in (512, 511, 33, 1337, 2048):
        step(model, length)
    more = compiled_kernels() - before
    if not before:
        return "no kernel was counted"
    return f"{more} more kernels for other lengths" if more else None


def gradients_of_step(model: Any, length: int = 700) -> list[Tensor]:
    """The logits of a step, and the gradients of all that learns."""
    model.zero_grad()
    logits = step(model, length)
    trained = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
    return [logits, *(gradient.clone() for gradient in trained if gradient is not None)]


def difference(found: list[Tensor], expected: list[Tensor]) -> str | None:
    """None, or how far a step is from another, where that is further than bfloat16 rounds."""
    # Of the biases of keys, which move all scores of a row alike, the gradient is zero but for rounding.
    least = 1e-3 * max(float(gradient.float().norm()) for gradient in expected[1:])
    errors = [
        float((one - other).float().norm() / other.float().norm().clamp(min=least))
        for one, other in zip(found, expected, strict=True)
    ]
    return f"differs by {max(errors):.1e}" if not max(errors) <= 0.05 else None


def check_whole_layer(model: Any) -> str | None:
    """Compare with the layers computed part by part, which a hook on one of them asks for."""
    parts = ("LongformerIntermediate", "ModernBertMLP")
    layers = [module for module in model.modules() if type(module).__name__ in parts]
    found = gradients_of_step(model)
    hooks = [layer.register_forward_hook(lambda *_: None) for layer in layers]
    expected = gradients_of_step(model)
    for hook in hooks:
        hook.remove()
    return difference(found, expected)


def check_plain(model: Any) -> str | None:
    """Compare with the plain PyTorch backend, at lengths that ModernBERT computes in different ways."""
    lengths = (700, 704)
    found = [gradients_of_step(model, length) for length in lengths]
    attention.install(model, backend="sdpa")
    expected = [gradients_of_step(model, length) for length in lengths]
    attention.install(model, backend="triton")
    problems = [difference(*pair) for pair in zip(found, expected, strict=True)]
    return next((problem for problem in problems if problem is not None), None)


def check_compile(model: Any) -> str | None:
    expected = step(model, 700)
    torch.compiler.reset()
    try:
        found = step(torch.compile(model, dynamic=True), 700)
    except Exception as error:  # whatever the compiler raises is the finding
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    error = float((found - expected).abs().max() / expected.abs().max())
    return f"differs by {error:.1e}" if error > 0.05 else None


class SyncWatch(TrainerCallback):
    """Lets PyTorch warn of every wait for the device, from the third step of a run to the last but one."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 2:
            torch.cuda.set_sync_debug_mode("warn")

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == state.max_steps - 1:
            torch.cuda.set_sync_debug_mode("default")


RUN = RunSettings(
    task="hyperpartisan", epochs=2, learning_rate=1e-3, batch_size=8, device_batch_size=4,
    max_train_documents=64, max_dev_documents=8, max_test_documents=8, max_length=512, keep_weights=False,
)  # fmt: skip


def check_run() -> str | None:
    """None, or what a run of `prefixprop train` waits for between the steps of an epoch.

    Recording a step waits, so here none is.
    """
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as told, unrecorded():
        warnings.simplefilter("always")
        settings = replace(RUN, epochs=1)
        train(settings, Path(folder) / "run", callbacks=[SyncWatch()], progress=Quiet())
    waits = Counter(f"{one.filename}:{one.lineno}" for one in told if "synchronizing CUDA" in str(one.message))
    return ", ".join(f"{count} times at {place}" for place, count in waits.items()) or None


@contextmanager
def unrecorded() -> Iterator[None]:
    usual, gpu.MOST_RECORDINGS = gpu.MOST_RECORDINGS, 0
    try:
        yield
    finally:
        gpu.MOST_RECORDINGS = usual


def check_recorded_run() -> str | None:
    """None, or how far a run of recorded steps is from the same run without."""
    recordings: list[Any] = []
    record = gpu.CudaGraph._record
    gpu.CudaGraph._record = lambda *given: recordings.append(record(*given)) or recordings[-1]
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = train(RUN, Path(folder) / "recorded", progress=Quiet()).metrics["dev"]
            with unrecorded():
                expected = train(RUN, Path(folder) / "plain", progress=Quiet()).metrics["dev"]
    finally:
        gpu.CudaGraph._record = record
    if len(recordings) < 2:
        return f"{len(recordings)} steps were recorded"
    apart = {name: value - expected[name] for name, value in found.items() if abs(value - expected[name]) > 1e-3}
    return str(apart) if apart else None


def check_modernbert_run() -> str | None:
    """None, or how far a run on a ModernBERT, under autocast, is from the same run on plain PyTorch."""
    _, tokenizer = load_default()
    shape = AutoConfig.for_model(
        "modernbert", num_hidden_layers=3, hidden_size=128, num_attention_heads=2, intermediate_size=192,
        vocab_size=len(tokenizer), max_position_embeddings=1024, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(0)
        AutoModel.from_config(shape).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        losses = []
        for backend in ("triton", "sdpa"):
            settings = replace(RUN, model=folder, attention_backend=backend, dropout=0.0, prefix_dropout=0.0)
            run = train(settings, Path(folder) / backend, progress=Quiet()).run_dir
            lines = (run / "history.jsonl").read_text(encoding="utf-8").splitlines()
            losses.append([json.loads(line)["loss"] for line in lines])
    apart = max(abs(one - two) for one, two in zip(*losses, strict=True))
    return f"losses differ by {apart:.1e}" if not apart < 2e-2 else None


def check_recorded_predictions() -> str | None:
    """None, or how far recorded passes are from those that were not, or what waited for the device."""
    model = next(iter(build_classifiers().values()))
    ids = [torch.randint(5, 100, (length,)).numpy() for length in (30, 300, 310, 45, 50, 305)]
    encoder = ReadingEncoder(model)
    encoder.add([new_reader(encoder.backbone, length, 3, seed=length) for length in (2, 4, 4)])
    ways = {
        "a model": lambda: start_classifying(model, ids, 1, 700, False, 4096),
        "readers": lambda: encoder.start(ids, [(0, 1), (2,)], 1, 700, True, 4096),
    }
    threads = [ThreadPoolExecutor(1) for _ in range(2)]  # as in a service, whose threads take turns
    for name, start in ways.items():
        found = [thread.submit(start).result()() for thread in threads * 3]
        torch.cuda.set_sync_debug_mode("error")
        try:
            threads[0].submit(start).result()
        except RuntimeError as error:
            return f"{name}: {str(error).splitlines()[0]}"
        finally:
            torch.cuda.set_sync_debug_mode("default")
        with unrecorded():
            encoder.add([])  # which forgets what is recorded
            expected = start()()
        for each in found:
            apart = max(float(abs(one - two).max()) for one, two in zip(each, expected, strict=True))
            if not apart <= 1e-6:
                return f"{name}: differs by {apart:.1e}"
    return None


def check_kept_states() -> str | None:
    """None, or how far text states in pinned memory, or computed anew, are from those on the GPU."""
    backbone = find_backbone(next(iter(build_classifiers().values())))
    documents = [torch.randint(5, 100, (length,)).numpy() for length in (300, 310, 45)]
    found = []
    usual = text_states.free_memory
    for place in ("cuda", "cpu", None):
        text_states.free_memory = lambda device, place=place: 2**40 if device.type == place else 0
        try:
            states = TextStates(backbone, documents, 1, nullcontext, 1024, place is not None, 4096)
            states.fill(Quiet())
        finally:
            text_states.free_memory = usual
        if (states.kept_on and states.kept_on.type) != place:
            return f"kept on {states.kept_on} in place of {place}"
        with torch.no_grad():
            text = states.text(states.inputs([0, 1, 2]))
        found.append(torch.stack(text.states)[:, ~text.pattern.is_masked].float())
    copied, again = (float((one - found[0]).abs().max() / found[0].abs().max()) for one in found[1:])
    # In another batch, bfloat16 may round otherwise.
    return f"copies differ by {copied:.1e}, states computed anew by {again:.1e}" if copied or again > 0.02 else None


def check_behaviour(console: Console) -> bool:
    checks = {
        "no waiting for the device": check_no_sync,
        "no recompilation for new lengths": check_no_recompilation,
        "a frozen layer in one piece is its parts": check_whole_layer,
        "gradients as in plain PyTorch": check_plain,
        "torch.compile": check_compile,
    }
    all_fine = True
    for name, model in build_classifiers().items():
        for what, check in checks.items():  # told at once: compiling takes minutes
            problem = check(model)
            all_fine &= problem is None
            console.print(f"training step, bfloat16, {name}: {what}: {problem or 'ok'}")
    of_runs = {
        "prefixprop train: no waiting within an epoch": check_run,
        "prefixprop train: recorded steps change nothing": check_recorded_run,
        "prefixprop train: a ModernBERT learns as on plain PyTorch": check_modernbert_run,
        "prefixprop predict: recorded passes change nothing": check_recorded_predictions,
        "readers: text states are the same wherever they are kept": check_kept_states,
    }
    for what, check in of_runs.items():
        problem = check()
        all_fine &= problem is None
        console.print(f"{what}: {problem or 'ok'}")
    return all_fine


PARTS = {"numbers": check_numbers, "behaviour": check_behaviour}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=PARTS, help="only this part")
    part = parser.parse_args().part
    wanted = [part] if part else list(PARTS)
    if not torch.cuda.is_available():
        print("This check needs an NVIDIA GPU and a PyTorch for CUDA; there is none here. Without one, `make test` "
              "runs the kernels in Triton's interpreter.", file=sys.stderr)  # fmt: skip
        return 2
    logging.set_verbosity_error()
    console = Console(width=160)
    fine = all([PARTS[part](console) for part in wanted])
    console.print("all fine" if fine else "FAILED: see above")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
