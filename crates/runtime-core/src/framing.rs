//! Container output as log records: `time stream tag text`, as the CRI has them. The keeper's program includes this very
//! file, so it knows nothing but `core`.
#![allow(dead_code, unreachable_pub)]

/// Text of one record. Longer lines are cut into records tagged P.
pub const LINE_MAX: usize = 16 << 10;
/// `2026-11-18T20:12:11.000000001Z`
pub const STAMP: usize = 30;
/// What comes before the text: stamp, stream of six letters, tag, three spaces.
pub const PREFIX: usize = STAMP + 1 + 6 + 1 + 1 + 1;
/// The longest record.
pub const RECORD_MAX: usize = PREFIX + LINE_MAX + 1;

/// Where records go, whole ones only.
pub trait Sink {
    /// The pieces are one record.
    fn record(&mut self, pieces: &[&[u8]]);
}

/// Cuts one stream into records. What has no end of line yet waits in a buffer of [`LINE_MAX`] bytes that the caller
/// keeps, so that it costs nothing while it is empty.
#[derive(Clone, Copy, Debug, Default)]
pub struct Framer {
    waiting: usize,
}

impl Framer {
    pub const fn new() -> Self {
        Self { waiting: 0 }
    }

    /// How many bytes wait for their end of line.
    pub const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Takes what was read. `prefix` is the time and the name of the stream, each followed by a space.
    pub fn put(&mut self, buffer: &mut [u8], mut input: &[u8], prefix: &[u8], sink: &mut impl Sink) {
        while !input.is_empty() {
            let room = LINE_MAX - self.waiting;
            let seen = if input.len() > room { &input[..room] } else { input };
            match position(seen, b'\n') {
                Some(end) => {
                    sink.record(&[prefix, b"F ", &buffer[..self.waiting], &seen[..end], b"\n"]);
                    self.waiting = 0;
                    input = &input[end + 1..];
                }
                // The line is exactly as long as it may be: its end belongs to this record.
                None if input.get(room) == Some(&b'\n') => {
                    sink.record(&[prefix, b"F ", &buffer[..self.waiting], seen, b"\n"]);
                    self.waiting = 0;
                    input = &input[room + 1..];
                }
                None if seen.len() == room && input.len() > room => {
                    sink.record(&[prefix, b"P ", &buffer[..self.waiting], seen, b"\n"]);
                    self.waiting = 0;
                    input = &input[room..];
                }
                None => {
                    buffer[self.waiting..self.waiting + seen.len()].copy_from_slice(seen);
                    self.waiting += seen.len();
                    input = &[];
                }
            }
        }
    }

    /// The stream has ended: what waits is its last line.
    pub fn finish(&mut self, buffer: &[u8], prefix: &[u8], sink: &mut impl Sink) {
        if self.waiting > 0 {
            sink.record(&[prefix, b"F ", &buffer[..self.waiting], b"\n"]);
            self.waiting = 0;
        }
    }
}

fn position(bytes: &[u8], wanted: u8) -> Option<usize> {
    bytes.iter().position(|b| *b == wanted)
}

/// Writes the time, in UTC, with nine digits so that records sort by it.
pub fn stamp(seconds: u64, nanos: u32, out: &mut [u8; STAMP]) {
    let (days, rest) = ((seconds / 86_400) as i64, (seconds % 86_400) as u32);
    let (year, month, day) = civil(days);
    out.copy_from_slice(b"0000-00-00T00:00:00.000000000Z");
    digits(&mut out[0..4], year);
    digits(&mut out[5..7], month);
    digits(&mut out[8..10], day);
    digits(&mut out[11..13], rest / 3600);
    digits(&mut out[14..16], rest / 60 % 60);
    digits(&mut out[17..19], rest % 60);
    digits(&mut out[20..29], nanos);
}

fn digits(out: &mut [u8], mut value: u32) {
    for place in out.iter_mut().rev() {
        *place = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// Days since 1970 as a date of the Gregorian calendar, whose years are counted from March.
fn civil(days: i64) -> (u32, u32, u32) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, (days % 146_097) as u32);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era as u32 * 400 + u32::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
#[path = "framing_tests.rs"]
mod tests;
