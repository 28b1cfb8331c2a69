"""Messages to prompt text, append-only.

Rule kept here: the prompt of a conversation is a prefix of the prompt of the same conversation with more messages,
so that what a language model has computed stays valid. That is why a model's own (Jinja) template is not run: many
insert dates, drop earlier reasoning or move the system text. Only the family is read from it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from duologue.models.cascade.chat import ChatMessage, Role


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """How one family of models marks who speaks. A message is `opening % role name`, its content, `closing`."""

    name: str
    marker: str  # what a model's own template contains if and only if the model is of this family
    start: str = ""
    opening: str
    closing: str
    stop: tuple[str, ...]
    assistant_name: str = "assistant"
    # Families without a system role get that text at the head of the next user message.
    has_system: bool = True

    def role_name(self, role: Role) -> str:
        return self.assistant_name if role is Role.ASSISTANT else role.value


CHATML = ChatTemplate(
    name="chatml",
    marker="<|im_start|>",
    opening="<|im_start|>%s\n",
    closing="<|im_end|>\n",
    stop=("<|im_end|>", "<|im_start|>"),
)
LLAMA3 = ChatTemplate(
    name="llama3",
    marker="<|start_header_id|>",
    start="<|begin_of_text|>",
    opening="<|start_header_id|>%s<|end_header_id|>\n\n",
    closing="<|eot_id|>",
    stop=("<|eot_id|>", "<|start_header_id|>"),
)
GEMMA = ChatTemplate(
    name="gemma",
    marker="<start_of_turn>",
    start="<bos>",
    opening="<start_of_turn>%s\n",
    closing="<end_of_turn>\n",
    stop=("<end_of_turn>", "<start_of_turn>"),
    assistant_name="model",
    has_system=False,
)
PHI3 = ChatTemplate(
    name="phi3",
    marker="<|end|>",
    opening="<|%s|>\n",
    closing="<|end|>\n",
    stop=("<|end|>", "<|user|>", "<|assistant|>"),
)
TEMPLATES = (CHATML, LLAMA3, GEMMA, PHI3)

# Whatever looks like a control token is taken out of what people and models said: it would be read as one.
_CONTROL = re.compile(r"<\|[^|<>]{1,40}\|>|</?s>|<bos>|<eos>|<(?:start|end)_of_turn>")


def detect_template(model_template: str) -> ChatTemplate:
    """The family whose marker a model's own template contains.

    Raises ValueError if there is none; pass a ChatTemplate of your own then.
    """
    for template in TEMPLATES:
        if template.marker in model_template:
            return template
    known = ", ".join(template.name for template in TEMPLATES)
    raise ValueError(f"the model's chat template is of no known family ({known}): pass `template=` for this model")


def clean(content: str) -> str:
    """`content` without control tokens and outer space."""
    while _CONTROL.search(content):
        content = _CONTROL.sub("", content)
    return content.strip()


def render(template: ChatTemplate, messages: Sequence[ChatMessage]) -> str:
    """Prompt text of `messages`, without the opening of an answer."""
    parts = [template.start]
    held: list[str] = []  # system text on its way into the next user message
    for message in messages:
        content = clean(message.content)
        if message.role is Role.SYSTEM and not template.has_system:
            held.append(content)
            continue
        if held and message.role is Role.USER:
            content = "\n\n".join([*held, content])
            held = []
        parts.append(template.opening % template.role_name(message.role) + content + template.closing)
    return "".join(parts)


def render_for_answer(template: ChatTemplate, messages: Sequence[ChatMessage]) -> str:
    """Prompt text of `messages` and the opening of the assistant's answer."""
    return render(template, messages) + template.opening % template.role_name(Role.ASSISTANT)
