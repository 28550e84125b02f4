"""A conversation by ``llm``, with the server as an OpenAI endpoint of its configuration; prints each turn's usage."""

from __future__ import annotations

import json
import sys

import llm


def main() -> None:
    conversation = llm.get_model("sessile").conversation()
    for index, question in enumerate(("Name a river.", "Name another.", "And a third?")):
        response = conversation.prompt(
            question, system="You are brief. " * 10 if not index else None, temperature=0, max_tokens=12
        )
        text, usage = response.text(), response.usage()
        assert text
        cached = (usage.details or {}).get("prompt_tokens_details", {}).get("cached_tokens", 0)
        print(json.dumps([usage.input, usage.output, cached]))


if __name__ == "__main__":
    sys.exit(main())
