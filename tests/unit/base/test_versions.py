import pytest

from labctl.base.hostfacts import upstream_release


@pytest.mark.parametrize(
    ("release", "version", "signature", "upstream"),
    [
        (
            "6.1.0-56-amd64",
            "#1 SMP PREEMPT_DYNAMIC Debian 6.1.176-1 (2026-11-01)",
            "",
            "6.1.176",
        ),
        ("6.12.9+bpo-amd64", "#1 SMP Debian 6.12.9-1~bpo12+1 (2025-01-19)", "", "6.12.9"),
        (
            "5.15.0-91-generic",
            "#101-Ubuntu SMP Tue Nov 14 13:30:08 UTC 2023",
            "Ubuntu 5.15.0-91.101-generic 5.15.131\n",
            "5.15.131",
        ),
        ("5.14.0-427.el9.x86_64", "#1 SMP PREEMPT_DYNAMIC", "", "5.14.0-427.el9.x86_64"),
        ("6.18.44", "#1 SMP PREEMPT_DYNAMIC", "Ubuntu 6.18", "6.18.44"),
    ],
)
def test_a_distribution_s_kernel_names_the_release_that_it_is_made_of(
    release: str, version: str, signature: str, upstream: str
) -> None:
    assert upstream_release(release, version, signature) == upstream
