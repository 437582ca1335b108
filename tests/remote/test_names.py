"""Which files of a repository a name means."""

from __future__ import annotations

import pytest

from lmhub.remote.names import Ambiguous, Reference, choices, choose, reference

FILES = {
    "README.md": 10,
    "config.json": 10,
    "mmproj-F16.gguf": 900,
    "imatrix_unsloth.gguf": 900,
    "Some-Model-8B-Q4_K_M.gguf": 4_900_000_000,
    "Some-Model-8B-Q8_0.gguf": 8_500_000_000,
    "Some-Model-8B-UD-Q4_K_XL.gguf": 5_100_000_000,
    "Some-Model-8B-MXFP4_MOE.gguf": 5_000_000_000,
    "Some-Model-8B-Q2_0_g64.gguf": 2_000_000_000,
    "BF16/Some-Model-8B-BF16-00002-of-00002.gguf": 7_000_000_000,
    "BF16/Some-Model-8B-BF16-00001-of-00002.gguf": 9_000_000_000,
    "F16/model-00001-of-00003.gguf": 9_000_000_000,  # its other parts are not there
    "IQ2_XXS/model.gguf": 1_000_000_000,
    "draft.gguf": 500_000_000,
}
REPO = "org/Some-Model-8B-GGUF"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/repo", Reference("org/repo")),
        ("org/repo:Q4_K_M", Reference("org/repo", "Q4_K_M")),
        ("org/re.po-1:BF16/model", Reference("org/re.po-1", "BF16/model")),
        ("org/model.gguf", None),
        ("/org/repo", None),
        ("./repo", None),
        ("../repo", None),
        ("org/repo/more", None),
        ("repo", None),
        ("org/repo:", None),
        ("org/re po", None),
        ("org/repo\n", None),
    ],
)
def test_what_can_be_a_name(text: str, expected: Reference | None) -> None:
    assert reference(text) == expected
    assert expected is None or str(expected) == text


def test_the_models_of_a_repository() -> None:
    made = choices(FILES)
    assert [one.label for one in made] == [
        *("draft", "IQ2_XXS", "Q2_0_g64", "Q4_K_M", "MXFP4_MOE", "UD-Q4_K_XL", "Q8_0", "BF16"),
    ]
    assert made[-1].files == (
        "BF16/Some-Model-8B-BF16-00001-of-00002.gguf",
        "BF16/Some-Model-8B-BF16-00002-of-00002.gguf",
    )
    assert made[-1].nbytes == 16_000_000_000


def test_two_models_of_one_quantisation_are_told_apart_by_their_names() -> None:
    made = choices({"a-Q8_0.gguf": 1, "b-Q8_0.gguf": 2, "b-Q4_0.gguf": 3})
    assert [one.label for one in made] == ["a-Q8_0", "b-Q8_0", "Q4_0"]
    assert choose(Reference("o/r", "a-q8_0"), made) is made[0]
    with pytest.raises(Ambiguous, match="may be any of these"):
        choose(Reference("o/r", "Q8_0"), made)


@pytest.mark.parametrize(
    ("quant", "label"),
    [
        ("Q4_K_M", "Q4_K_M"),
        ("q4_k_m", "Q4_K_M"),
        ("Q4_K_XL", "UD-Q4_K_XL"),
        ("bf16", "BF16"),
        ("IQ2_XXS", "IQ2_XXS"),
        ("Some-Model-8B-Q8_0", "Q8_0"),
        ("Some-Model-8B-Q8_0.gguf", "Q8_0"),
        ("draft", "draft"),
    ],
)
def test_a_name_means_one(quant: str, label: str) -> None:
    assert choose(Reference(REPO, quant), choices(FILES)).label == label


def test_a_name_that_leaves_it_open_gets_a_list_with_sizes() -> None:
    with pytest.raises(Ambiguous) as caught:
        choose(Reference(REPO), choices(FILES))
    first, *lines = str(caught.value).split("\n")
    assert first == f"{REPO} may be any of these; say which one, like {REPO}:draft"
    assert lines[3] == "  Q4_K_M         4.90 GB" and lines[-1] == "  BF16          16.00 GB  in 2 parts"
    with pytest.raises(Ambiguous, match=rf"^{REPO} has no Q5_0; it has these, named like {REPO}:draft\n  draft"):
        choose(Reference(REPO, "Q5_0"), choices(FILES))


def test_a_single_model_needs_no_quantisation() -> None:
    [only] = choices({"m-Q8_0.gguf": 1, "README.md": 2})
    assert choose(Reference(REPO), [only]) is only
    with pytest.raises(Ambiguous, match="holds no GGUF model"):
        choose(Reference(REPO), choices({"model.safetensors": 1}))


def test_names_of_files_do_not_reach_the_terminal_as_they_are() -> None:
    with pytest.raises(Ambiguous) as caught:
        choose(Reference(REPO), choices({"\x1b[2Ja.gguf": 1, "b.gguf": 2}))
    assert "\x1b" not in str(caught.value)
