"""A LangGraph agent, over OpenAI's chat API: ``python examples/langgraph_agent.py [URL]``."""

from __future__ import annotations

import sys
from typing import Literal

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, tools_condition

FILES = {"notes.txt": "The build broke on Tuesday.", "todo.txt": "Mend the build."}
SYSTEM = SystemMessage("You answer questions about a project in one short sentence.")


@tool
def read_file(name: Literal["notes.txt", "todo.txt"]) -> str:
    """Read a file of the project."""
    return FILES[name]


def build(url: str) -> CompiledStateGraph:
    """A model that calls the tool when it is asked, and then answers in words."""
    model = ChatOpenAI(base_url=f"{url}/v1", api_key="none", model="default", temperature=0, max_completion_tokens=60)
    # A small model would not call by itself, and would not stop behind one call.
    must_call = model.bind_tools([read_file], tool_choice="required", strict=True, parallel_tool_calls=False)
    in_words = model.bind_tools([read_file], tool_choice="none", strict=True)

    def answer(state: MessagesState) -> dict[str, list[AnyMessage]]:
        asked = isinstance(state["messages"][-1], HumanMessage)
        return {"messages": [(must_call if asked else in_words).invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", answer)
    graph.add_node("tools", ToolNode([read_file]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def main(url: str) -> None:
    """Two questions, the second one in the conversation of the first."""
    agent = build(url)
    messages: list[AnyMessage] = [SYSTEM]
    for question in ("Read notes.txt and tell me on which day the build broke.", "And what is there to do?"):
        messages = agent.invoke({"messages": [*messages, HumanMessage(question)]})["messages"]
    for message in messages:
        if isinstance(message, AIMessage) and (usage := message.usage_metadata):
            calls = [f"{call['name']}({call['args']})" for call in message.tool_calls]
            cached = usage.get("input_token_details", {}).get("cache_read", 0)
            print(f"{usage['input_tokens']} prompt tokens, {cached} from the cache: {message.content or calls}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000")
