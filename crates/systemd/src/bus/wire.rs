//! Messages of D-Bus, as far as the calls, properties and signals of systemd and its login manager need them.
//! Little-endian, as every bus takes it.

/// Bytes of the fixed part of a message.
pub const HEAD: usize = 16;
/// A message longer than this is nothing that concerns us.
pub const LONGEST: usize = 1 << 20;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
const SIGNAL: u8 = 4;

/// Fields of a head.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// A call of a method.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub destination: &'a str,
    pub path: &'a str,
    pub interface: &'a str,
    pub member: &'a str,
    pub arguments: &'a [Value<'a>],
}

#[derive(Clone, Copy, Debug)]
pub enum Value<'a> {
    Text(&'a str),
    Texts(&'a [String]),
    Truth(bool),
    Int(i32),
    Large(u64),
    Bytes(&'a [u8]),
    /// Names with values of any kind.
    Named(&'a [(&'a str, Value<'a>)]),
    /// No further units: systemd takes a list of them with their properties.
    NoUnits,
}

/// A message that came in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    pub kind: MessageType,
    /// Which call it answers.
    pub answers: u32,
    pub interface: String,
    pub member: String,
    pub error: String,
    pub signature: String,
    pub body: Vec<u8>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MessageType {
    Return,
    Error,
    Signal,
    #[default]
    Other,
}

// === impl Call ===

impl Call<'_> {
    pub fn write(&self, serial: u32) -> Vec<u8> {
        let mut body = Writer::default();
        let mut signature = String::new();
        for argument in self.arguments {
            signature.push_str(argument.signature());
            body.value(argument);
        }
        let mut fields = Writer::default();
        fields.field(PATH, "o", self.path);
        fields.field(DESTINATION, "s", self.destination);
        fields.field(INTERFACE, "s", self.interface);
        fields.field(MEMBER, "s", self.member);
        if !signature.is_empty() {
            fields.field(SIGNATURE, "g", &signature);
        }
        let mut message = Writer(vec![b'l', CALL, 0, 1]);
        message.number(length(&body.0));
        message.number(serial);
        message.number(length(&fields.0));
        message.0.extend(fields.0);
        message.align(8);
        message.0.extend(body.0);
        message.0
    }
}

// === impl Value ===

impl Value<'_> {
    fn signature(&self) -> &'static str {
        match self {
            Value::Text(_) => "s",
            Value::Texts(_) => "as",
            Value::Truth(_) => "b",
            Value::Int(_) => "i",
            Value::Large(_) => "t",
            Value::Bytes(_) => "ay",
            Value::Named(_) => "a(sv)",
            Value::NoUnits => "a(sa(sv))",
        }
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}

/// Values one after another, each at a multiple of its size. What is written apart begins at a multiple of eight.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, number: u32) {
        self.align(4);
        self.0.extend(number.to_le_bytes());
    }

    fn value(&mut self, value: &Value<'_>) {
        match value {
            Value::Text(text) => self.text(text),
            Value::Texts(texts) => self.list(4, |list| texts.iter().for_each(|text| list.text(text))),
            Value::Truth(truth) => self.number(u32::from(*truth)),
            Value::Int(number) => self.number(number.cast_unsigned()),
            Value::Large(number) => {
                self.align(8);
                self.0.extend(number.to_le_bytes());
            }
            Value::Bytes(bytes) => self.list(1, |list| list.0.extend(*bytes)),
            Value::Named(pairs) => self.list(8, |list| {
                for (name, value) in *pairs {
                    list.align(8);
                    list.text(name);
                    list.signature(value.signature());
                    list.value(value);
                }
            }),
            Value::NoUnits => self.list(8, |_| {}),
        }
    }

    /// Its length comes first, and does not count what aligns the first element.
    fn list(&mut self, align: usize, elements: impl FnOnce(&mut Self)) {
        self.number(0);
        let place = self.0.len() - 4;
        self.align(align);
        let begin = self.0.len();
        elements(self);
        let count = length(&self.0[begin..]);
        self.0[place..place + 4].copy_from_slice(&count.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(length(text.as_bytes()));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn field(&mut self, code: u8, kind: &str, value: &str) {
        self.align(8);
        self.0.push(code);
        self.signature(kind);
        match kind {
            "g" => self.signature(value),
            _ => self.text(value),
        }
    }
}

/// How long the whole message is, by its fixed part; none if it is none of ours.
pub fn size(head: &[u8; HEAD]) -> Option<usize> {
    let number = |at: usize| {
        let bytes: [u8; 4] = head.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let (body, fields) = (number(4)?, number(12)?);
    let all = HEAD.checked_add(fields)?.next_multiple_of(8).checked_add(body)?;
    (head[0] == b'l' && all <= LONGEST).then_some(all)
}

// === impl Message ===

impl Message {
    /// Reads a whole message; none if it is broken.
    pub fn read(bytes: &[u8]) -> Option<Message> {
        let kind = match *bytes.get(1)? {
            RETURN => MessageType::Return,
            ERROR => MessageType::Error,
            SIGNAL => MessageType::Signal,
            _ => MessageType::Other,
        };
        let mut message = Message { kind, ..Message::default() };
        let mut reader = Reader { bytes, at: 12 };
        let fields = usize::try_from(reader.number()?).ok()?;
        let end = HEAD.checked_add(fields).filter(|end| *end <= bytes.len())?;
        while reader.at < end {
            reader.align(8);
            let code = reader.byte()?;
            let signature = reader.signature()?;
            let mut text = String::new();
            let mut number = 0;
            match signature.as_str() {
                "s" | "o" => text = reader.text()?,
                "g" => text = reader.signature()?,
                "u" => number = reader.number()?,
                _ => return None,
            }
            match code {
                INTERFACE => message.interface = text,
                MEMBER => message.member = text,
                ERROR_NAME => message.error = text,
                REPLY_SERIAL => message.answers = number,
                SIGNATURE => message.signature = text,
                _ => {}
            }
        }
        message.body = bytes.get(end.next_multiple_of(8)..)?.to_vec();
        Some(message)
    }

    /// The first text of the body.
    pub fn text(&self) -> Option<String> {
        self.signature.starts_with('s').then(|| Reader { bytes: &self.body, at: 0 }.text())?
    }

    /// The body is the path of an object.
    pub fn object(&self) -> Option<String> {
        (self.signature == "o").then(|| Reader { bytes: &self.body, at: 0 }.text())?
    }

    /// The body is a variant with a text in it.
    pub fn variant_text(&self) -> Option<String> {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        (self.signature == "v" && reader.signature()? == "s").then(|| reader.text())?
    }

    /// The end of a job of systemd: which, and how it went.
    pub fn job(&self) -> Option<(String, String)> {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        if self.signature != "uoss" {
            return None;
        }
        let _number = reader.number()?;
        let job = reader.text()?;
        let _unit = reader.text()?;
        Some((job, reader.text()?))
    }

    /// The body is one truth value.
    pub fn truth(&self) -> Option<bool> {
        (self.signature == "b").then(|| Reader { bytes: &self.body, at: 0 }.number())?.map(|n| n != 0)
    }

    /// The body is a variant with a large number in it.
    pub fn large(&self) -> Option<u64> {
        let mut reader = Reader { bytes: &self.body, at: 0 };
        if self.signature != "v" || reader.signature()? != "t" {
            return None;
        }
        reader.align(8);
        let bytes: [u8; 8] = reader.take(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.at..self.at.checked_add(count)?)?;
        self.at += count;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn text(&mut self) -> Option<String> {
        let count = usize::try_from(self.number()?).ok()?;
        let text = String::from_utf8(self.take(count)?.to_vec()).ok();
        self.take(1)?;
        text
    }

    fn signature(&mut self) -> Option<String> {
        let count = usize::from(self.byte()?);
        let text = String::from_utf8(self.take(count)?.to_vec()).ok();
        self.take(1)?;
        text
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_laid_out_as_buses_read_it() {
        let call = Call {
            destination: "d.e",
            path: "/p",
            interface: "i.f",
            member: "Do",
            arguments: &[Value::Text("hello"), Value::Int(-1)],
        };
        let bytes = call.write(7);
        assert_eq!(size(bytes[..HEAD].try_into().unwrap()), Some(bytes.len()));
        let message = Message::read(&bytes).unwrap();
        assert_eq!((message.interface.as_str(), message.member.as_str()), ("i.f", "Do"));
        assert_eq!((message.signature.as_str(), message.text().as_deref()), ("si", Some("hello")));
        assert_eq!(&message.body[message.body.len() - 4..], [0xff; 4]);
        assert!(bytes.len() - message.body.len() == 8 * ((bytes.len() - message.body.len()) / 8));
    }

    #[test]
    fn what_a_bus_says_is_understood() {
        // logind's answer to the question for InhibitDelayMaxUSec, as dbus-daemon passes it on.
        let answer = Message {
            kind: MessageType::Return,
            signature: "v".into(),
            body: [&[1, b't', 0, 0, 0, 0, 0, 0][..], &5_000_000u64.to_le_bytes()].concat(),
            ..Message::default()
        };
        assert_eq!(answer.large(), Some(5_000_000));
        let signal = Message { signature: "b".into(), body: vec![1, 0, 0, 0], ..Message::default() };
        assert_eq!((signal.truth(), signal.large(), signal.text()), (Some(true), None, None));
    }

    #[test]
    fn values_lie_where_their_sizes_want_them() {
        let write = |value: Value<'_>| {
            let mut out = Writer::default();
            out.0.push(7);
            out.value(&value);
            out.0
        };
        let texts = ["a".to_owned(), "bc".to_owned()];
        for (value, want) in [
            (Value::Truth(true), vec![7, 0, 0, 0, 1, 0, 0, 0]),
            (Value::Large(2), vec![7, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]),
            (Value::Bytes(&[1, 2]), vec![7, 0, 0, 0, 2, 0, 0, 0, 1, 2]),
            (
                Value::Texts(&texts),
                [&[7, 0, 0, 0, 15, 0, 0, 0, 1, 0, 0, 0][..], b"a\0\0\0\x02\0\0\0bc\0"].concat(),
            ),
            (Value::NoUnits, vec![7, 0, 0, 0, 0, 0, 0, 0]),
            (
                Value::Named(&[("n", Value::Truth(false)), ("m", Value::Large(9))]),
                [
                    &[7, 0, 0, 0, 40, 0, 0, 0][..],
                    b"\x01\0\0\0n\0\x01b\0\0\0\0\0\0\0\0",
                    b"\x01\0\0\0m\0\x01t\0\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0",
                ]
                .concat(),
            ),
        ] {
            assert_eq!(write(value), want, "{value:?}");
        }
    }

    #[test]
    fn nonsense_is_nothing() {
        let bytes =
            Call { destination: "d", path: "/p", interface: "i", member: "m", arguments: &[] }.write(1);
        for end in 0..bytes.len() {
            let _ = Message::read(&bytes[..end]);
            let mut broken = bytes.clone();
            broken[end] ^= 0xff;
            let _ = Message::read(&broken);
        }
        assert_eq!(size(&[0xff; HEAD]), None);
        assert_eq!(size(&[b'l', 2, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
