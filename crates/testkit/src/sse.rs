//! Server-sent events, taken apart as a browser does.

use std::collections::VecDeque;

/// What stood between two empty lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// Its id, if it has one.
    pub id: Option<String>,
    /// Its data; empty for one that is no event.
    pub data: String,
    /// Its comments.
    pub comments: Vec<String>,
}

/// Takes bytes in and hands frames out.
#[derive(Debug, Default)]
pub struct Frames {
    rest: Vec<u8>,
    frame: Frame,
    whole: VecDeque<Frame>,
}

impl Frames {
    /// What has come.
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

    /// The next that is whole.
    fn next(&mut self) -> Option<Frame> {
        self.whole.pop_front()
    }
}
