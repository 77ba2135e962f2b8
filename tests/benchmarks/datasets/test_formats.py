"""Readers against files made on the fly."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest
from scipy.io import savemat

from benchmarks.datasets import formats
from tests.benchmarks.datasets import makers


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("shape", [(7,), (2, 5, 3), (0, 4)])
def test_idx_files_are_read_back(tmp_path, shape, suffix):
    values = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    makers.write_idx(tmp_path / f"file{suffix}", values)
    read = formats.read_idx(tmp_path / f"file{suffix}")
    np.testing.assert_array_equal(read, values)
    assert read.flags.writeable


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", "not an idx file"),
        (b"\x00\x00\x0d\x01\x00\x00\x00\x01\x00\x00\x00\x00", "not an idx file"),  # float32 values
        (b"\x00\x00\x08\x03\x00\x00", "within its header"),
        (b"\x00\x00\x08\x01\x00\x00\x00\x05\x01\x02", r"shape \(5,\) but holds 2"),
    ],
)
def test_broken_idx_files_are_named(tmp_path, content, message):
    path = tmp_path / "broken"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        formats.read_idx(path)


def test_a_python_2_cifar_batch_is_read():
    x, y = makers.images(6)
    read_x, read_y = formats.read_cifar_batch(io.BytesIO(makers.cifar_pickle(x, y)))
    np.testing.assert_array_equal(read_x, x)
    np.testing.assert_array_equal(read_y, y)
    assert (read_x.dtype, read_y.dtype) == (np.uint8, np.int64)


class RunsCommand:
    def __reduce__(self):
        return os.system, ("exit 1",)


class CallsNumpy:
    def __reduce__(self):
        return np.fromfile, ("/dev/null",)


@pytest.mark.parametrize("content", [RunsCommand(), {b"data": CallsNumpy(), b"labels": []}, {b"data": np.ones(3)}])
def test_a_pickle_that_calls_anything_is_refused(content):
    with pytest.raises(pickle.UnpicklingError, match="refused"):
        formats.read_cifar_batch(io.BytesIO(pickle.dumps(content, protocol=2)))


@pytest.mark.parametrize("content", [{}, [1, 2], {b"data": [0] * 3072, b"labels": [0]}])
def test_another_pickle_is_not_taken_for_a_batch(content):
    with pytest.raises(ValueError, match="not a CIFAR-10 batch"):
        formats.read_cifar_batch(io.BytesIO(pickle.dumps(content)))


def test_a_batch_with_too_few_labels_is_refused():
    x, y = makers.images(3)
    with pytest.raises(ValueError, match="not a CIFAR-10 batch"):
        formats.read_cifar_batch(io.BytesIO(makers.cifar_pickle(x, y[:2])))


def test_the_cifar_archive_is_read_in_place(tmp_path):
    batches = makers.write_cifar_archive(tmp_path / "cifar.tar.gz", tmp_path / "scratch")
    for (x, y), (read_x, read_y) in zip(
        batches.values(), formats.read_cifar_archive(tmp_path / "cifar.tar.gz"), strict=True
    ):
        np.testing.assert_array_equal(read_x, x)
        np.testing.assert_array_equal(read_y, y)


def test_an_archive_without_a_batch_is_named(tmp_path):
    folder = tmp_path / "scratch" / "cifar-10-batches-py"
    makers.write_cifar_archive(tmp_path / "whole.tar.gz", tmp_path / "scratch")
    (folder / "data_batch_3").unlink()
    with tarfile.open(tmp_path / "part.tar.gz", "w:gz") as archive:
        archive.add(folder, "cifar-10-batches-py")
    with pytest.raises(ValueError, match="lacks data_batch_3"):
        formats.read_cifar_archive(tmp_path / "part.tar.gz")


def test_svhn_stores_the_digit_0_as_10_and_the_images_last(tmp_path):
    x, _ = makers.images(3)
    savemat(
        tmp_path / "test_32x32.mat", {"X": x.transpose(2, 3, 1, 0), "y": np.array([[10], [1], [9]], dtype=np.uint8)}
    )
    read_x, read_y = formats.read_svhn_mat(tmp_path / "test_32x32.mat")
    np.testing.assert_array_equal(read_x, x)
    np.testing.assert_array_equal(read_y, [0, 1, 9])
    assert read_x.flags.c_contiguous


def test_another_matlab_file_is_not_taken_for_svhn(tmp_path):
    savemat(tmp_path / "other.mat", {"a": np.zeros(3)})
    with pytest.raises(ValueError, match="not an SVHN file"):
        formats.read_svhn_mat(tmp_path / "other.mat")


def test_the_compact_form_is_lossless(tmp_path):
    x, y = makers.images(5)
    x[0], x[1] = 0, 255
    makers.write_compact_rgb(tmp_path / "part.npz", x, y)
    read_x, read_y = formats.read_compact_rgb(tmp_path / "part.npz")
    np.testing.assert_array_equal(read_x, x)
    np.testing.assert_array_equal(read_y, y)
    assert (read_x.dtype, read_y.dtype, read_x.flags.c_contiguous) == (np.uint8, np.int64, True)


def test_other_npz_files_are_refused(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="compact form"):
        formats.read_compact_rgb(tmp_path / "other.npz")
    with pytest.raises(ValueError, match="lacks X, test_idx, train_idx, y"):
        formats.read_table_npz(tmp_path / "other.npz")


def test_a_compact_table_and_its_text_files_hold_the_same_numbers(tmp_path):
    content = makers.table(n_splits=3)
    np.savez(tmp_path / "table.npz", **content)
    makers.write_table_text(tmp_path / "text", content)
    for x, y, train, test in (
        formats.read_table_npz(tmp_path / "table.npz"),
        formats.read_table_text(tmp_path / "text"),
    ):
        np.testing.assert_array_equal(x, content["X"])
        np.testing.assert_array_equal(y, content["y"])
        np.testing.assert_array_equal(train, content["train_idx"])
        np.testing.assert_array_equal(test, content["test_idx"])
        assert train[0].dtype == np.int64


def test_a_table_has_one_target(tmp_path):
    makers.write_table_text(tmp_path / "text", makers.table(n_splits=1))
    (tmp_path / "text" / "index_target.txt").write_text("0\n1\n")
    with pytest.raises(ValueError, match="one column, got 2"):
        formats.read_table_text(tmp_path / "text")
