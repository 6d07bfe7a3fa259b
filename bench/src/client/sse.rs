//! Server-sent events, taken apart as they come (WHATWG HTML, 9.2.6).

/// A reader of one stream.
#[derive(Debug, Default)]
pub(super) struct SseReader {
    /// A line whose end has not come.
    line: Vec<u8>,
    /// The data of an event whose end has not come.
    data: Vec<u8>,
    has_data: bool,
    /// A byte order mark may stand before the first line.
    is_begun: bool,
}

/// An event that is longer than any answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

/// Bytes of an event at most.
const MAX_EVENT: usize = 16 << 20;

impl SseReader {
    /// Reads on; `event` is called with the data of each event that is complete.
    pub(super) fn read<E: From<TooLong>>(
        &mut self,
        mut bytes: &[u8],
        mut event: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        while let Some(end) = bytes.iter().position(|&byte| byte == b'\n') {
            let (rest_of_line, rest) = (&bytes[..end], &bytes[end + 1..]);
            bytes = rest;
            if self.line.is_empty() {
                self.take_line(rest_of_line, &mut event)?;
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(rest_of_line);
                self.take_line(&line, &mut event)?;
                line.clear();
                self.line = line;
            }
        }
        self.line.extend_from_slice(bytes);
        if self.line.len() + self.data.len() > MAX_EVENT {
            return Err(TooLong.into());
        }
        Ok(())
    }

    fn take_line<E>(
        &mut self,
        line: &[u8],
        event: &mut impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut line = line.strip_suffix(b"\r").unwrap_or(line);
        if !std::mem::replace(&mut self.is_begun, true) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            let result = if self.has_data {
                event(&self.data)
            } else {
                Ok(())
            };
            self.data.clear();
            self.has_data = false;
            return result;
        }
        // Comments (an empty name), and fields other than data, say nothing here.
        let value = match line.strip_prefix(b"data") {
            Some([]) => &[][..],
            Some([b':', b' ', value @ ..] | [b':', value @ ..]) => value,
            _ => return Ok(()),
        };
        if self.has_data {
            self.data.push(b'\n');
        }
        self.data.extend_from_slice(value);
        self.has_data = true;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl From<TooLong> for String {
        fn from(_: TooLong) -> String {
            "too long".to_owned()
        }
    }

    fn events<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let (mut reader, mut events) = (SseReader::default(), Vec::new());
        for piece in pieces {
            let read = reader.read(piece, |data| {
                events.push(String::from_utf8_lossy(data).into_owned());
                Ok::<(), String>(())
            });
            assert_eq!(read, Ok(()));
        }
        events
    }

    const STREAM: &str = "\u{feff}: comment\r\ndata: one\r\n\r\nevent: x\ndata:two\ndata\ndata:  2\nid: 7\n\n\n\nretry: 3\n\ndata: {\"a\": \"ü\"}\n\ndata: unended";

    #[test]
    fn events_are_those_of_the_standard() {
        let expected = ["one", "two\n\n 2", "{\"a\": \"ü\"}"];
        assert_eq!(events([STREAM.as_bytes()]), expected);
    }

    proptest! {
        #[test]
        fn how_a_stream_is_cut_into_pieces_does_not_matter(
            mut cuts in prop::collection::vec(0..STREAM.len(), 0..20)
        ) {
            cuts.extend([0, STREAM.len()]);
            cuts.sort_unstable();
            let pieces = cuts.windows(2).map(|cut| &STREAM.as_bytes()[cut[0]..cut[1]]);
            prop_assert_eq!(events(pieces), events([STREAM.as_bytes()]));
        }
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut reader = SseReader::default();
        let piece = vec![b'a'; 1 << 20];
        let refused = (0..32).any(|_| reader.read(&piece, |_| Ok::<(), String>(())).is_err());
        assert!(refused);
        assert!(reader.line.len() <= MAX_EVENT + piece.len());
    }
}
