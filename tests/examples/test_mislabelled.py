"""The example of mislabelled digits, in a smaller form."""

import pytest

from examples import mislabelled


def test_wrong_labels_are_found_and_mended(tmp_path, capsys):
    """Of a random choice one in ten would be wrong. Held-out NLL gets better by mending and by removing."""
    pytest.importorskip("matplotlib")
    picture = tmp_path / "suspects.png"
    options = ["--n-train=240", "--hidden=8", "--epochs=7", "--more-epochs=3", f"--picture={picture}"]
    result = mislabelled.main(options)
    assert result.found > 0.6 and len(result.suspects) == 24
    assert result.nll["suspects mended"] < result.nll["wrong labels"] - 0.05
    assert result.nll["suspects removed, settled"] < result.nll["wrong labels"] - 0.05
    assert picture.stat().st_size > 5_000
    assert "most surprising labels" in capsys.readouterr().out
