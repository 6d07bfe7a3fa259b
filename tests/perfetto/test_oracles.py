"""The oracles refuse what they must."""

import unittest

from check_traces import judge
from official_schema import unknown_fields
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb

# Field 1011, a varint.
UNKNOWN = b"\x98\x3f\x01"


def good_trace():
    """One slice with an argument and one counter value of one thread."""
    trace = pb.Trace()
    first = trace.packet.add(trusted_packet_sequence_id=7, sequence_flags=1)
    first.interned_data.event_names.add(iid=1, name="work")
    first.interned_data.debug_annotation_names.add(iid=1, name="size")
    first.track_descriptor.uuid = 1
    first.track_descriptor.process.pid = 100
    thread = trace.packet.add(trusted_packet_sequence_id=7).track_descriptor
    thread.uuid, thread.parent_uuid = 2, 1
    thread.thread.pid, thread.thread.tid = 100, 101
    counter = trace.packet.add(trusted_packet_sequence_id=7).track_descriptor
    counter.uuid, counter.parent_uuid, counter.name = 3, 1, "load"
    counter.counter.SetInParent()
    for timestamp, kind in ((1000, 1), (3000, 2), (2000, 4)):
        packet = trace.packet.add(
            trusted_packet_sequence_id=7, sequence_flags=2, timestamp=timestamp
        )
        event = packet.track_event
        event.type, event.track_uuid = kind, 2
        if kind == 1:
            event.name_iid = 1
            event.debug_annotations.add(name_iid=1, uint_value=5)
        if kind == 4:
            event.track_uuid, event.counter_value = 3, 9
    return trace


def judge_trace(trace):
    return judge(trace.SerializeToString())


class Schema(unittest.TestCase):
    def test_known_fields_pass(self):
        self.assertEqual(unknown_fields(good_trace().SerializeToString()), [])

    def test_an_unknown_field_is_named_at_any_depth(self):
        places = {
            "Trace.packet[0].1011": lambda t: t.packet[0],
            "Trace.packet[3].track_event.1011": lambda t: t.packet[3].track_event,
            "Trace.packet[3].track_event.debug_annotations[0].1011": lambda t: (
                t.packet[3].track_event.debug_annotations[0]
            ),
            "Trace.packet[1].track_descriptor.thread.1011": lambda t: (
                t.packet[1].track_descriptor.thread
            ),
        }
        for path, find in places.items():
            trace = good_trace()
            find(trace).MergeFromString(UNKNOWN)
            (found,) = unknown_fields(trace.SerializeToString())
            self.assertTrue(found.startswith(path), found)


class TraceProcessor(unittest.TestCase):
    def test_a_good_trace_is_shown_whole(self):
        wrong, shown = judge_trace(good_trace())
        self.assertEqual(wrong, [])
        self.assertEqual(shown["slices"], [["work", None, 1000, 2000, 0]])
        self.assertEqual(shown["counters"], [["load", 2000, 9.0]])
        self.assertEqual(shown["processes"], [[100, None]])

    def assert_wrong(self, trace, what):
        wrong, _ = judge_trace(trace)
        self.assertTrue(any(what in line for line in wrong), wrong)

    def test_state_that_was_never_cleared_is_seen(self):
        trace = good_trace()
        trace.packet[0].sequence_flags = 0
        self.assert_wrong(trace, "tokenizer_skipped_packets")

    def test_an_unknown_clock_is_seen(self):
        trace = good_trace()
        trace.packet[3].timestamp_clock_id = 64
        self.assert_wrong(trace, "clock_sync_failure")

    def test_a_cut_in_the_middle_is_seen(self):
        data = good_trace().SerializeToString()
        wrong, _ = judge(data[:-1] + data)
        self.assertTrue(any("cannot be loaded" in line for line in wrong), wrong)


if __name__ == "__main__":
    unittest.main()
