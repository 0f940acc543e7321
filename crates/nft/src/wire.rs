//! Netlink attributes and headers: writing them into one growing buffer, and reading them without trusting them.

/// `NFNL_SUBSYS_NFTABLES`.
pub const SUBSYSTEM: u16 = 10;

pub const FLAG_REQUEST: u16 = 0x1;
pub const FLAG_ACK: u16 = 0x4;
pub const FLAG_DUMP: u16 = 0x300;
pub const FLAG_EXCLUSIVE: u16 = 0x200;
pub const FLAG_CREATE: u16 = 0x400;
pub const FLAG_APPEND: u16 = 0x800;
/// On what a dump tells: something changed in between, ask again.
pub const FLAG_INTERRUPTED: u16 = 0x10;

pub const HEADER: usize = 16;
/// The netlink header and the four bytes that every netfilter message starts with.
pub const HEADERS: usize = HEADER + 4;

const NESTED: u16 = 0x8000;
const TYPE_MASK: u16 = 0x3fff;

/// Messages being written.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

/// Where a message or a nested attribute began: its length is known only at the end.
#[derive(Debug)]
#[must_use]
pub struct Mark(usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u16,
    pub flags: u16,
    pub sequence: u32,
    pub port: u32,
}

#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    pub kind: u16,
    pub data: &'a [u8],
}

/// Attributes one after the other. Stops at the first that does not fit.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a>(pub &'a [u8]);

/// Messages of one datagram. Stops at the first that does not fit.
#[derive(Clone, Copy, Debug)]
pub struct Messages<'a>(pub &'a [u8]);

// === impl Writer ===

impl Writer {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// Starts a message. `family` and `resource` are what netfilter puts before the attributes.
    pub fn begin(&mut self, kind: u16, flags: u16, sequence: u32, family: u8, resource: u16) -> Mark {
        let [high, low] = resource.to_be_bytes();
        self.begin_with(kind, flags, sequence, &[family, 0, high, low])
    }

    /// Starts a message of another subsystem, which has something of its own before the attributes.
    pub fn begin_with(&mut self, kind: u16, flags: u16, sequence: u32, head: &[u8]) -> Mark {
        let mark = Mark(self.bytes.len());
        self.bytes.extend([0; 4]);
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend((flags | FLAG_REQUEST).to_ne_bytes());
        self.bytes.extend(sequence.to_ne_bytes());
        self.bytes.extend([0; 4]);
        self.bytes.extend(head);
        mark
    }

    pub fn end(&mut self, mark: Mark) {
        let len = u32::try_from(self.bytes.len() - mark.0).unwrap_or(u32::MAX);
        self.bytes[mark.0..mark.0 + 4].copy_from_slice(&len.to_ne_bytes());
    }

    /// Adds flags to the message that starts at `start`.
    pub(crate) fn flag(&mut self, start: usize, flags: u16) {
        let at = start + 6..start + 8;
        let old = self.bytes.get(at.clone()).and_then(|bytes| bytes.first_chunk());
        let new = u16::from_ne_bytes(old.copied().unwrap_or_default()) | flags;
        self.bytes[at].copy_from_slice(&new.to_ne_bytes());
    }

    pub fn nest(&mut self, kind: u16) -> Mark {
        let mark = Mark(self.bytes.len());
        self.bytes.extend([0; 2]);
        self.bytes.extend((kind | NESTED).to_ne_bytes());
        mark
    }

    /// How much a nested attribute holds so far; it can hold 64 KiB.
    pub fn nested_len(&self, mark: &Mark) -> usize {
        self.bytes.len() - mark.0
    }

    pub fn close(&mut self, mark: Mark) {
        let len = u16::try_from(self.bytes.len() - mark.0).unwrap_or(u16::MAX);
        self.bytes[mark.0..mark.0 + 2].copy_from_slice(&len.to_ne_bytes());
    }

    /// What is no attribute, inside one: a head of its own.
    pub fn raw(&mut self, data: &[u8]) {
        self.bytes.extend(data);
    }

    pub fn bytes(&mut self, kind: u16, data: &[u8]) {
        let len = u16::try_from(4 + data.len()).unwrap_or(u16::MAX);
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(data);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn u64(&mut self, kind: u16, value: u64) {
        self.bytes(kind, &value.to_be_bytes());
    }

    pub fn text(&mut self, kind: u16, text: &str) {
        let len = u16::try_from(5 + text.len()).unwrap_or(u16::MAX);
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

// === impl Attribute ===

impl<'a> Attribute<'a> {
    pub fn u8(&self) -> Option<u8> {
        self.data.first().copied()
    }

    pub fn u32(&self) -> Option<u32> {
        self.data.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
    }

    pub fn u64(&self) -> Option<u64> {
        self.data.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
    }

    pub fn text(&self) -> Option<&'a str> {
        let end = self.data.iter().position(|b| *b == 0).unwrap_or(self.data.len());
        std::str::from_utf8(&self.data[..end]).ok()
    }

    pub fn nested(&self) -> Attributes<'a> {
        Attributes(self.data)
    }
}

// === impl Attributes ===

impl<'a> Attributes<'a> {
    pub fn get(self, kind: u16) -> Option<Attribute<'a>> {
        self.into_iter().find(|attribute: &Attribute<'_>| attribute.kind == kind)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Attribute<'a>> {
        let len = usize::from(u16::from_ne_bytes(*self.0.first_chunk()?));
        let kind = u16::from_ne_bytes(*self.0.get(2..)?.first_chunk()?) & TYPE_MASK;
        let data = self.0.get(4..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some(Attribute { kind, data })
    }
}

// === impl Messages ===

impl<'a> Iterator for Messages<'a> {
    /// The header, and everything after it.
    type Item = (Header, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let word = |at: usize| self.0.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let half = |at: usize| self.0.get(at..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes));
        let len = usize::try_from(word(0)?).ok()?;
        let header = Header { kind: half(4)?, flags: half(6)?, sequence: word(8)?, port: word(12)? };
        let body = self.0.get(HEADER..len)?;
        self.0 = self.0.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((header, body))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read() {
        let mut out = Writer::default();
        let message = out.begin(7, FLAG_ACK, 3, 2, 0);
        let nest = out.nest(9);
        out.text(1, "four");
        out.u64(2, 5);
        out.close(nest);
        out.end(message);
        let bytes = out.into_bytes();
        let (header, body) = Messages(&bytes).next().unwrap();
        assert_eq!(header, Header { kind: 7, flags: FLAG_ACK | FLAG_REQUEST, sequence: 3, port: 0 });
        let nested = Attributes(&body[4..]).get(9).unwrap().nested();
        assert_eq!(nested.get(1).unwrap().text(), Some("four"));
        assert_eq!(nested.get(2).unwrap().u64(), Some(5));
        assert_eq!(Messages(&bytes).count(), 1);
    }

    proptest::proptest! {
        #[test]
        fn noise_is_read_without_harm(noise in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            for (_, body) in Messages(&noise) {
                let _ = Attributes(body).flat_map(|a| a.nested()).count();
            }
            for a in Attributes(&noise) {
                let _ = (a.u8(), a.u32(), a.u64(), a.text());
            }
        }
    }
}
