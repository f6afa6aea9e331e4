#!/usr/bin/env python3
"""Bytes of tests/train/event_file_test.cpp, from the tensorboard package's writer and protobuf classes."""
import io

from tensorboard.compat.proto.summary_pb2 import HistogramProto, Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class Buffer(io.BytesIO):
    def close(self):
        pass


buffer = Buffer()
RecordWriter(buffer).write(b"hello")
print("tf_record  ", buffer.getvalue().hex())
print("scalar     ", Summary.Value(tag="lm loss", simple_value=5.5).SerializeToString().hex())
bars = HistogramProto(min=0, max=2, num=4, sum=3 * 0.5 + 1.5, sum_squares=3 * 0.25 + 2.25, bucket_limit=[1, 2],
                      bucket=[3, 1])
print("bars       ", Summary.Value(tag="e", histo=bars).SerializeToString().hex())
