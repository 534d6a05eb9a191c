//! Server-sent events, from bytes cut anywhere.

/// One event.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// Its type, where the server gives one.
    pub(crate) kind: Option<String>,
    /// Its data lines.
    pub(crate) data: Vec<String>,
}

/// Puts lines and events together.
#[derive(Debug, Default)]
pub(crate) struct Parser {
    /// The line that is not whole yet.
    line: Vec<u8>,
    /// A carriage return ended the last line, so a line feed now belongs to it.
    after_return: bool,
    /// Whether a line was seen; the first may begin with a byte order mark.
    begun: bool,
    event: Event,
}

impl Parser {
    /// Takes the next byte; gives the event that it completes.
    pub(crate) fn push(&mut self, byte: u8) -> Option<Event> {
        let after_return = std::mem::take(&mut self.after_return);
        match byte {
            b'\n' if after_return => None,
            b'\n' => self.end_line(),
            b'\r' => {
                self.after_return = true;
                self.end_line()
            }
            byte => {
                self.line.push(byte);
                None
            }
        }
    }

    /// The bytes have ended; gives what was not closed by a blank line.
    pub(crate) fn finish(&mut self) -> Option<Event> {
        let last = self.end_line();
        last.or_else(|| self.take())
    }

    fn end_line(&mut self) -> Option<Event> {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        let mut line = text.as_ref();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.strip_prefix('\u{feff}').unwrap_or(line);
        }
        if line.is_empty() {
            return self.take();
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "data" => self.event.data.push(value.to_owned()),
            "event" => self.event.kind = Some(value.to_owned()),
            // A comment (no name), an id, a retry time, or something new.
            _ => {}
        }
        None
    }

    fn take(&mut self) -> Option<Event> {
        let event = std::mem::take(&mut self.event);
        (!event.data.is_empty()).then_some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_endings_and_lines() {
        let mut parser = Parser::default();
        let bytes = b"\xef\xbb\xbfdata: a\r\n\r\n: ping\n\ndata:b\ndata: c\revent: error\r\rid: 1\n\ndata: d";
        let mut events: Vec<Event> = bytes.iter().filter_map(|&byte| parser.push(byte)).collect();
        events.extend(parser.finish());
        let data: Vec<String> = events.iter().map(|event| event.data.join("|")).collect();
        assert_eq!(data, ["a", "b|c", "d"]);
        assert_eq!(events[1].kind.as_deref(), Some("error"));
    }
}
