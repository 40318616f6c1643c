"""How long `DocumentClassifier` takes to fit, and to answer, on articles of the Hyperpartisan data in the package.

python benchmarks/fit.py [--documents 200] [--max-length 256] [--method readers]
"""

from __future__ import annotations

import argparse
import time

from prefixprop import DocumentClassifier
from prefixprop.data import ClassificationTask, load_task


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--max-length", type=int, default=256)
    parser.add_argument("--method", default="readers")
    given = parser.parse_args()
    task = load_task("hyperpartisan")
    assert isinstance(task, ClassificationTask)
    texts, labels = zip(*((each.text, task.label_names[each.label]) for each in task.train), strict=True)
    classifier = DocumentClassifier(method=given.method, max_length=given.max_length)
    started = time.monotonic()
    classifier.fit(texts[: given.documents], labels[: given.documents])
    fitted = time.monotonic()
    classifier.predict(texts[-100:])
    answered = time.monotonic()
    print(
        f"fit on {given.documents} documents: {fitted - started:.1f} s; answers to 100: {answered - fitted:.1f} s; "
        f"expected accuracy {classifier.expected_accuracy_:.3f}"
    )


if __name__ == "__main__":
    main()
