"""Speed against every peer, in one process: `python -m benchmarks [names…] [--quick] [--json]`.

Each file is one question. To add a question, add a file with

    TITLE = "…"                          what is measured, in a few words
    TARGET = "…"                         the ratios to reach

    def measure(bench: Bench) -> list[Target]:
        for n in bench.pick([128, 512, 2048], quick=[512]):
            bench.compare(Case(f"n {n}", ours=lambda: …, peers={"SDPA": lambda: make_a_call()}))
        return [at_least("slowest point", bench.worst(), 1.15)]

and run it by its name: `python -m benchmarks yourfile`. `bench.compare` checks that every peer
computes our result, times all of them in interleaved rounds, and adds a row to the table. A peer
that cannot run a case raises `UnableError("why")` when its call is made; the reason is printed.

    harness.py   interleaved rounds, medians and quartiles
    machine.py   the FMA peak, the read bandwidth, names and versions
    peers.py     SDPA, compiled FlexAttention, ONNX Runtime, OpenVINO on the same tensors
    report.py    the table: on the terminal, in RESULTS.md and results.json
"""
