from labctl.base.process import last_words


def test_the_last_line_is_what_a_program_said() -> None:
    assert last_words(b"reading\nno space left\n") == "no space left"
    assert last_words(b"") == ""
