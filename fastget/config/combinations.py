"""Which method goes with which base model, setting and head: asked before anything is loaded."""

from __future__ import annotations

from fastget import bases, methods


def title_of(method: str, base: str, recipe: str = "default") -> str:
    """The method's name, and the base model's and the recipe where they are not the default."""
    title = method if base == bases.DEFAULT else f"{method} on {base}"
    values = {"default": "", "paper": ", paper's values"}
    return title + values.get(recipe, f", recipe {recipe}")


HEADS = {"own step": "cosine"}  # a method that gives this needs that head


def why_not(method: str, base: str, setting: str, head: str) -> str | None:
    """Why they do not go together, and what does; None if they do."""
    of_method, of_base = methods.settings_of(method), bases.settings_of(base)
    if of_method.gives and not of_method.gives & of_base.uses:
        fitting = [name for name in bases.names() if of_method.gives & bases.settings_of(name).uses]
        takes, gives = (" or ".join(WORDS[part] for part in sorted(parts)) for parts in (of_base.uses, of_method.gives))
        return (
            f"method.name={method} does not go with method.base={base}, which takes {takes} from a method, and "
            f"{method} gives {gives}: choose method.base={' or '.join(fitting)}"
        )
    if setting not in of_method.runs_in:
        needed, why = " or ".join(of_method.runs_in), of_method.elsewhere.get(setting, "")
        return (
            f"method.name={method} is made for data.setting={needed}, got {setting}{why and ': '}{why}. "
            f"Use --setting {needed}, or another method"
        )
    for part, needed in HEADS.items():
        if part in of_method.gives and head != needed:
            return f"method.name={method} needs network.head={needed}, got {head}: set network.head={needed}"
    return None


WORDS: dict[str, str] = {
    "term": "a term of the loss",
    "labels": "labels of the target images",
    "own step": "a term with an optimizer's step of its own",
    "source-free": "a term of steps without source images",
}
