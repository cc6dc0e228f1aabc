"""Every network of `symbols` is recorded."""

from tests.gpu_record.networks import FILES
from tests.gpu_record.runs import ROOT


def test_every_file_of_symbols_has_a_network_that_is_recorded():
    texts = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "symbols").glob("*.py")}
    networks = {stem for stem, text in texts.items() if "\ndef get_symbol(" in text and stem != "__init__"}
    assert networks == set(FILES.values())
