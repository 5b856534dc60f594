//! Reads server-sent events, such as those of a gateway's `/api/v1/events`.
//!
//! Knows the format, and the id after which a new connection continues. Leaves to others: connections, and the meaning
//! of events.

use std::collections::VecDeque;

/// The lines between two empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The id, if there is one.
    pub id: Option<String>,
    /// The data; empty for a frame that is not an event.
    pub data: String,
    /// The comments. A gateway sends one from time to time to show that the connection is alive.
    pub comments: Vec<String>,
}

/// Reads one connection after the other: takes bytes, and returns frames.
#[derive(Debug, Default)]
pub struct Frames {
    /// The incomplete line.
    rest: Vec<u8>,
    /// The last line ended with CR: an LF that follows is part of its end.
    after_cr: bool,
    /// The incomplete frame.
    frame: Frame,
    whole: VecDeque<Frame>,
    /// The id of the last complete frame that has one.
    last_id: Option<String>,
}

impl Frames {
    /// The id after which to continue: the value for the header `Last-Event-ID`.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Begins a new connection. A frame that was half read is dropped, because it comes again.
    pub fn begin(&mut self) {
        *self = Frames { last_id: self.last_id.take(), ..Frames::default() };
    }

    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let after_cr = std::mem::replace(&mut self.after_cr, byte == b'\r');
            match byte {
                b'\n' if after_cr => {}
                b'\r' | b'\n' => {
                    let line = std::mem::take(&mut self.rest);
                    self.line(&String::from_utf8_lossy(&line));
                }
                byte => self.rest.push(byte),
            }
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            let mut frame = std::mem::take(&mut self.frame);
            if frame.data.ends_with('\n') {
                frame.data.pop();
            }
            if frame.id.is_some() {
                self.last_id.clone_from(&frame.id);
            }
            self.whole.push_back(frame);
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "" => self.frame.comments.push(value.to_owned()),
            "id" => self.frame.id = Some(value.to_owned()),
            "data" => {
                self.frame.data += value;
                self.frame.data.push('\n');
            }
            _ => {}
        }
    }
}

impl Iterator for Frames {
    type Item = Frame;

    /// The next complete frame; `None` until more bytes arrive.
    fn next(&mut self) -> Option<Frame> {
        self.whole.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(frames: &mut Frames, bytes: &[u8]) -> Vec<String> {
        frames.feed(bytes);
        frames.filter(|frame| !frame.data.is_empty()).map(|frame| frame.data).collect()
    }

    #[test]
    fn events_come_in_pieces_and_only_whole_ones_count() {
        let mut frames = Frames::default();
        assert!(events(&mut frames, b": hello\nid: 1\n\nid: 2\ndata: {\"a\":").is_empty());
        assert_eq!(frames.last_id(), Some("1"), "an id alone is no event, and counts");
        assert_eq!(events(&mut frames, b"1}\r\n\r\ndata: x\ndata: y\n\nid: 3\nda"), ["{\"a\":1}", "x\ny"]);
        assert_eq!(frames.last_id(), Some("2"));
        frames.begin();
        assert_eq!(events(&mut frames, b"data: z\n\n"), ["z"]);
        assert_eq!(frames.last_id(), Some("2"));
    }

    #[test]
    fn a_line_ends_with_cr_or_lf_or_both_however_it_is_cut() {
        let text = b"id: 1\r\ndata: {\rdata: 1\ndata: }\r\n\r\ndata: x\r\rdata: y\n\n";
        let whole = ["{\n1\n}", "x", "y"];
        assert_eq!(events(&mut Frames::default(), text), whole);
        let mut frames = Frames::default();
        let in_bytes: Vec<_> = text.iter().flat_map(|byte| events(&mut frames, &[*byte])).collect();
        assert_eq!((in_bytes, frames.last_id()), (whole.map(str::to_owned).to_vec(), Some("1")));
    }

    #[test]
    fn comments_and_ids_are_kept_with_their_frame() {
        let mut frames = Frames::default();
        frames.feed(b": hello\nretry: 1000\nid: 7\n\n:ping\n\n");
        let greeting = Frame { id: Some("7".into()), comments: vec!["hello".into()], ..Frame::default() };
        let ping = Frame { comments: vec!["ping".into()], ..Frame::default() };
        assert_eq!(frames.collect::<Vec<_>>(), [greeting, ping]);
    }
}
