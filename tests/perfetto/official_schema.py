"""Finds fields in a trace that Perfetto's own descriptors do not know.

usage: official_schema.py FILE...
"""

import sys

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace import perfetto_trace_pb2


def unknown_fields(data):
    """Paths of all unknown fields in a serialized trace, at any depth."""
    trace = perfetto_trace_pb2.Trace.FromString(data)
    return list(_unknown(trace, "Trace"))


def _unknown(message, path):
    for field in UnknownFieldSet(message):
        yield f"{path}.{field.field_number} (wire type {field.wire_type})"
    for descriptor, value in message.ListFields():
        if descriptor.type != descriptor.TYPE_MESSAGE:
            continue
        children = enumerate(value) if descriptor.is_repeated else [(None, value)]
        for place, child in children:
            suffix = "" if place is None else f"[{place}]"
            yield from _unknown(child, f"{path}.{descriptor.name}{suffix}")


def main(paths):
    if not paths:
        sys.exit(__doc__.strip().splitlines()[-1])
    is_clean = True
    for path in paths:
        with open(path, "rb") as file:
            data = file.read()
        try:
            unknown = unknown_fields(data)
        except DecodeError as error:
            unknown = [str(error)]
        for what in unknown[:20]:
            print(f"{path}: unknown: {what}")
        print(f"{path}: {len(unknown)} unknown fields in {len(data)} bytes")
        is_clean = is_clean and not unknown
    sys.exit(0 if is_clean else 1)


if __name__ == "__main__":
    main(sys.argv[1:])
