"""jaxfn without Triton, and beside it."""

from tests.package import printed


def test_import_of_jaxfn_and_of_triton_call_does_not_import_triton():
    printed(
        "import sys, jaxfn; assert 'jaxfn._triton' not in sys.modules; "
        "jaxfn.triton_call; assert not {'triton', 'torch'} & {*sys.modules}"
    )


def test_without_triton_the_message_says_what_to_install():
    printed(
        "import sys; sys.modules['triton'] = None; import jaxfn\n"
        "try: jaxfn.triton_call(None, 1, out={})\n"
        "except ImportError as e: assert \"pip install 'jaxfn[triton]'\" in str(e)\n"
        "else: sys.exit(1)"
    )
