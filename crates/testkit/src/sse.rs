//! Parses server-sent events as a browser does.

use std::collections::VecDeque;

/// The lines between two empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The id, if there is one.
    pub id: Option<String>,
    /// The data; empty for a frame that is not an event.
    pub data: String,
    /// The comments.
    pub comments: Vec<String>,
}

/// Takes bytes and returns frames.
#[derive(Debug, Default)]
pub struct Frames {
    rest: Vec<u8>,
    frame: Frame,
    whole: VecDeque<Frame>,
}

impl Frames {
    /// Adds received bytes.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8(line).expect("events are text");
            self.line(line.trim_end());
        }
    }

    fn line(&mut self, line: &str) {
        if line.is_empty() {
            self.whole.push_back(std::mem::take(&mut self.frame));
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.trim_start();
        match field {
            "" => self.frame.comments.push(value.to_owned()),
            "id" => self.frame.id = Some(value.to_owned()),
            "data" => {
                self.frame.data += if self.frame.data.is_empty() { "" } else { "\n" };
                self.frame.data += value;
            }
            _ => {}
        }
    }
}

impl Iterator for Frames {
    type Item = Frame;

    /// The next complete frame.
    fn next(&mut self) -> Option<Frame> {
        self.whole.pop_front()
    }
}
