from labctl.workloads.failures import last_words


def test_the_last_line_is_what_a_program_said() -> None:
    assert last_words(b"reading\nno space left\n") == "no space left"
    assert last_words(b"") == ""


def test_rtla_s_words_on_a_kernel_without_its_tracers_come_with_the_kernel_s_option() -> None:
    # As rtla 6.1 says it on a kernel without CONFIG_OSNOISE_TRACER.
    said = last_words(b"Failed to apply CPUs config\nCould not apply config\n")
    assert said.startswith("Could not apply config")
    assert "CONFIG_TIMERLAT_TRACER=y" in said
    assert "linux-image-rt-amd64" in said
