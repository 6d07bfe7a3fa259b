//! One packet after another, and how the file ends.

use crate::proto::TracePacket;
use prost::Message;
use std::io::{self, BufRead, Read};

/// Longest packet that is believed; a longer one is a broken length.
pub const MAX_PACKET_BYTES: usize = 16 << 20;

/// `Trace.packet`: field 1, length-delimited.
const PACKET_TAG: u8 = 0x0a;

/// A whole packet.
#[derive(Debug)]
pub struct Packet<'a> {
    /// Its number in the file, from 0.
    pub index: u64,
    /// Where its first byte (the tag) lies in the file.
    pub offset: u64,
    /// Tag, length and body, as they are in the file.
    pub framed: &'a [u8],
    /// The body alone.
    pub body: &'a [u8],
    /// What it says.
    pub content: TracePacket,
}

/// How a file ends after its last whole packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tail {
    /// With that packet.
    Whole,
    /// In the middle of the next packet.
    Cut {
        /// Where that packet begins.
        offset: u64,
    },
    /// With zeros, as a file does that was enlarged before it was written.
    Zeros {
        /// Where they begin.
        offset: u64,
    },
    /// With something that is no packet.
    Broken {
        /// Where it begins.
        offset: u64,
        /// Why it is none.
        why: String,
    },
}

impl Tail {
    /// What is lost by reading whole packets only, in words.
    pub fn loss(&self) -> Option<String> {
        match self {
            Tail::Whole => None,
            Tail::Cut { offset } => Some(format!("cut packet at byte {offset} left out")),
            Tail::Zeros { offset } => Some(format!("zeros from byte {offset} on left out")),
            Tail::Broken { offset, why } => Some(format!(
                "left out what follows byte {offset}, which is no packet: {why}"
            )),
        }
    }
}

/// Reads packets until the first place that is none. Holds one packet at a time.
pub struct PacketReader<R> {
    input: R,
    buffer: Vec<u8>,
    index: u64,
    offset: u64,
    tail: Option<Tail>,
}

/// What a packet's first bytes turn out to be.
enum Head {
    Body { len: usize },
    End(Tail),
}

impl<R: BufRead> PacketReader<R> {
    /// A reader of a trace that begins with `input`'s first byte.
    pub fn new(input: R) -> PacketReader<R> {
        PacketReader {
            input,
            buffer: Vec::new(),
            index: 0,
            offset: 0,
            tail: None,
        }
    }

    /// The next whole packet; after the last one `None`, and [`Self::tail`] is known.
    pub fn next_packet(&mut self) -> io::Result<Option<Packet<'_>>> {
        if self.tail.is_some() {
            return Ok(None);
        }
        self.buffer.clear();
        let len = match self.head()? {
            Head::Body { len } => len,
            Head::End(tail) => return Ok(self.end(tail)),
        };
        let head = self.buffer.len();
        let read = (&mut self.input)
            .take(len as u64)
            .read_to_end(&mut self.buffer)?;
        if read < len {
            return Ok(self.end(Tail::Cut {
                offset: self.offset,
            }));
        }
        let content = match TracePacket::decode(&self.buffer[head..]) {
            Ok(content) => content,
            Err(why) => {
                return Ok(self.end(Tail::Broken {
                    offset: self.offset,
                    why: why.to_string(),
                }));
            }
        };
        let (index, offset) = (self.index, self.offset);
        self.index += 1;
        self.offset += self.buffer.len() as u64;
        Ok(Some(Packet {
            index,
            offset,
            framed: &self.buffer,
            body: &self.buffer[head..],
            content,
        }))
    }

    /// How the file ends, once [`Self::next_packet`] has said `None`.
    pub fn tail(&self) -> Option<&Tail> {
        self.tail.as_ref()
    }

    /// Packets read so far.
    pub fn packets(&self) -> u64 {
        self.index
    }

    /// Bytes of the packets read so far: where the file would have to be cut.
    pub fn whole_bytes(&self) -> u64 {
        self.offset
    }

    fn end(&mut self, tail: Tail) -> Option<Packet<'_>> {
        self.tail = Some(tail);
        None
    }

    /// Reads tag and length into the buffer.
    fn head(&mut self) -> io::Result<Head> {
        let offset = self.offset;
        match self.byte()? {
            None => return Ok(Head::End(Tail::Whole)),
            Some(PACKET_TAG) => {}
            Some(0) if self.only_zeros_left()? => return Ok(Head::End(Tail::Zeros { offset })),
            Some(byte) => {
                let why = format!("a packet begins with byte {PACKET_TAG:#04x}, not {byte:#04x}");
                return Ok(Head::End(Tail::Broken { offset, why }));
            }
        }
        let mut len: u64 = 0;
        for shift in (0..64).step_by(7) {
            let Some(byte) = self.byte()? else {
                return Ok(Head::End(Tail::Cut { offset }));
            };
            len |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(match usize::try_from(len) {
                    Ok(len) if len <= MAX_PACKET_BYTES => Head::Body { len },
                    _ => Head::End(Tail::Broken {
                        offset,
                        why: format!("a packet of {len} bytes; {MAX_PACKET_BYTES} are the most"),
                    }),
                });
            }
        }
        Ok(Head::End(Tail::Broken {
            offset,
            why: "a packet's length has no end".to_owned(),
        }))
    }

    fn byte(&mut self) -> io::Result<Option<u8>> {
        let Some(&byte) = self.input.fill_buf()?.first() else {
            return Ok(None);
        };
        self.input.consume(1);
        self.buffer.push(byte);
        Ok(Some(byte))
    }

    fn only_zeros_left(&mut self) -> io::Result<bool> {
        loop {
            let chunk = self.input.fill_buf()?;
            if chunk.is_empty() {
                return Ok(true);
            }
            if chunk.iter().any(|&byte| byte != 0) {
                return Ok(false);
            }
            let len = chunk.len();
            self.input.consume(len);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::Trace;
    use proptest::prelude::*;

    fn packet(timestamp: u64) -> TracePacket {
        TracePacket {
            timestamp: Some(timestamp),
            ..Default::default()
        }
    }

    fn three() -> Vec<u8> {
        let packet = vec![packet(1), packet(1 << 40), packet(3)];
        Trace { packet }.encode_to_vec()
    }

    fn read(bytes: &[u8]) -> (Vec<u64>, u64, Tail) {
        // A buffer of 3 bytes, so that every packet crosses its edge.
        let mut reader = PacketReader::new(io::BufReader::with_capacity(3, bytes));
        let mut stamps = Vec::new();
        while let Some(packet) = reader.next_packet().unwrap() {
            assert_eq!(
                &bytes[packet.offset as usize..][..packet.framed.len()],
                packet.framed
            );
            assert!(packet.framed.ends_with(packet.body));
            assert_eq!(packet.index, stamps.len() as u64);
            stamps.push(packet.content.timestamp.unwrap());
        }
        assert!(reader.next_packet().unwrap().is_none());
        (stamps, reader.whole_bytes(), reader.tail().unwrap().clone())
    }

    #[test]
    fn a_whole_file_is_read_to_its_end() {
        let bytes = three();
        assert_eq!(
            read(&bytes),
            (vec![1, 1 << 40, 3], bytes.len() as u64, Tail::Whole)
        );
        assert_eq!(read(&[]), (vec![], 0, Tail::Whole));
    }

    #[test]
    fn a_cut_anywhere_costs_only_the_packet_it_hits() {
        let bytes = three();
        let ends = [0, 4, 4 + 9, 4 + 9 + 4];
        assert_eq!(bytes.len(), ends[3]);
        for cut in 0..bytes.len() {
            let whole = ends.iter().filter(|&&end| 0 < end && end <= cut).count();
            let offset = ends[whole] as u64;
            let tail = match ends.contains(&cut) {
                true => Tail::Whole,
                false => Tail::Cut { offset },
            };
            let (stamps, bytes, found) = read(&bytes[..cut]);
            assert_eq!((stamps.len(), bytes, found), (whole, offset, tail), "{cut}");
        }
    }

    #[test]
    fn zeros_at_the_end_are_padding() {
        for zeros in [1, 2, 3, 4096] {
            let mut bytes = three();
            let offset = bytes.len() as u64;
            bytes.resize(bytes.len() + zeros, 0);
            assert_eq!(read(&bytes).1, offset);
            assert_eq!(read(&bytes).2, Tail::Zeros { offset });
        }
    }

    #[test]
    fn what_is_no_packet_is_named() {
        let why = |tail: &[u8]| {
            let bytes = [three(), tail.to_vec()].concat();
            let (stamps, whole, tail) = read(&bytes);
            assert_eq!(stamps.len(), 3);
            match tail {
                Tail::Broken { offset, why } => {
                    assert_eq!(offset, whole);
                    why
                }
                other => panic!("{other:?}"),
            }
        };
        assert!(why(&[0, 0, 1]).contains("0x00"));
        assert!(why(b"[{}]").contains("0x5b"));
        assert!(why(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]).contains("4294967295"));
        assert!(why(&[[0x0a].as_slice(), &[0xff; 10]].concat()).contains("no end"));
        // A body of zeros: a torn write.
        assert!(!why(&[0x0a, 3, 0, 0, 0]).is_empty());
    }

    proptest! {
        #[test]
        fn no_input_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut reader = PacketReader::new(bytes.as_slice());
            while reader.next_packet().unwrap().is_some() {}
            prop_assert!(reader.whole_bytes() <= bytes.len() as u64);
        }
    }
}
