//! Parses server-sent events from a stream. Knows the format; leaves to others the meaning of the events.

/// Reads one connection after the other, and remembers its position.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// The incomplete line.
    rest: Vec<u8>,
    /// The last line ended with CR: an LF that follows is part of its end.
    after_cr: bool,
    data: String,
    id: Option<String>,
    /// The id of the last complete event.
    seen: Option<String>,
}

impl Reader {
    /// The id after which to continue.
    pub(crate) fn last_id(&self) -> Option<&str> {
        self.seen.as_deref()
    }

    /// Begins a new connection: an event that was half read comes again.
    pub(crate) fn begin(&mut self) {
        *self = Reader { seen: self.seen.take(), ..Reader::default() };
    }

    /// Adds received bytes, and returns the data of the events that are complete now.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut whole = Vec::new();
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\r' | b'\n' => {
                    let line = std::mem::take(&mut self.rest);
                    whole.extend(self.line(&String::from_utf8_lossy(&line)));
                }
                byte => self.rest.push(byte),
            }
        }
        whole
    }

    fn line(&mut self, line: &str) -> Option<String> {
        if line.is_empty() {
            self.seen = self.id.take().or(self.seen.take());
            let data = std::mem::take(&mut self.data);
            return data.strip_suffix('\n').map(str::to_owned);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => self.data += &format!("{value}\n"),
            "id" => self.id = Some(value.to_owned()),
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_in_pieces_and_only_whole_ones_count() {
        let mut reader = Reader::default();
        assert!(reader.take(b": hello\nid: 1\n\nid: 2\ndata: {\"a\":").is_empty());
        assert_eq!(reader.last_id(), Some("1"), "an id alone is no event, and counts");
        assert_eq!(reader.take(b"1}\r\n\r\ndata: x\ndata: y\n\nid: 3\nda"), ["{\"a\":1}", "x\ny"]);
        assert_eq!(reader.last_id(), Some("2"));
        reader.begin();
        assert_eq!(reader.take(b"data: z\n\n"), ["z"]);
        assert_eq!(reader.last_id(), Some("2"));
    }

    #[test]
    fn a_line_ends_with_cr_or_lf_or_both_however_it_is_cut() {
        let text = b"id: 1\r\ndata: {\rdata: 1\ndata: }\r\n\r\ndata: x\r\rdata: y\n\n";
        let whole = ["{\n1\n}", "x", "y"];
        assert_eq!(Reader::default().take(text), whole);
        let mut reader = Reader::default();
        let in_bytes: Vec<_> = text.iter().flat_map(|byte| reader.take(&[*byte])).collect();
        assert_eq!((in_bytes, reader.last_id()), (whole.map(str::to_owned).to_vec(), Some("1")));
    }
}
