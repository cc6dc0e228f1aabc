"""Numbers of numpy reach MXNet's library as plain text."""

from __future__ import annotations

import mxnet as mx
import numpy as np
import pytest


@pytest.mark.filterwarnings("ignore:tostring.. is deprecated")  # numpy 1
def test_parameters_of_a_record_iterator_may_be_numpys(tmp_path):
    pytest.importorskip("cv2")
    path = str(tmp_path / "a.rec")
    record = mx.recordio.MXRecordIO(path, "w")
    for i in range(4):
        image = np.full((8, 8, 3), i, np.uint8)
        record.write(mx.recordio.pack_img(mx.recordio.IRHeader(0, float(i), i, 0), image, quality=3, img_fmt=".png"))
    record.close()
    shape = tuple(np.array([3, 8, 8]))
    batches = list(mx.io.ImageRecordIter(path_imgrec=path, data_shape=shape, batch_size=np.int64(2)))
    assert [batch.data[0].shape for batch in batches] == [(2, 3, 8, 8)] * 2
