#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

#[derive(Default)]
struct Records(Vec<Vec<u8>>);

impl Sink for Records {
    fn record(&mut self, pieces: &[&[u8]]) {
        self.0.push(pieces.concat());
    }
}

fn records(pieces: &[&[u8]]) -> Vec<String> {
    let (mut framer, mut buffer, mut records) = (Framer::new(), vec![0; LINE_MAX], Records::default());
    for piece in pieces {
        framer.put(&mut buffer, piece, b"T stdout ", &mut records);
    }
    framer.finish(&buffer, b"T stdout ", &mut records);
    records.0.into_iter().map(|r| String::from_utf8(r).unwrap()).collect()
}

#[test]
fn lines_become_records() {
    let long = "x".repeat(LINE_MAX);
    let rows: &[(&[&[u8]], Vec<String>)] = &[
        (&[], vec![]),
        (&[b"a\nb\n"], vec!["T stdout F a\n".into(), "T stdout F b\n".into()]),
        (&[b"a", b"b\n"], vec!["T stdout F ab\n".into()]),
        (&[b"\n"], vec!["T stdout F \n".into()]),
        (&[b"no end"], vec!["T stdout F no end\n".into()]),
        (&[long.as_bytes(), b"\n"], vec![format!("T stdout F {long}\n")]),
        (&[long.as_bytes(), b"y\n"], vec![format!("T stdout P {long}\n"), "T stdout F y\n".into()]),
    ];
    for (pieces, want) in rows {
        assert_eq!(&records(pieces), want);
    }
}

#[test]
fn times_are_written_as_the_calendar_has_them() {
    let rows = [
        (0, 0, "1970-01-01T00:00:00.000000000Z"),
        (951_782_399, 1, "2000-02-28T23:59:59.000000001Z"),
        (951_782_400, 0, "2000-02-29T00:00:00.000000000Z"),
        (1_794_787_931, 999_999_999, "2026-11-16T00:12:11.999999999Z"),
        (4_107_542_400, 0, "2100-03-01T00:00:00.000000000Z"),
    ];
    for (seconds, nanos, want) in rows {
        let mut out = [0; STAMP];
        stamp(seconds, nanos, &mut out);
        assert_eq!(std::str::from_utf8(&out).unwrap(), want);
    }
}

proptest! {
    /// Whatever the cuts, the text of the records is the stream, and no record is longer than it may be.
    #[test]
    fn nothing_is_lost_or_added(
        lines in prop::collection::vec(prop_oneof![0usize..5, 16_380..16_390usize, 0usize..40_000], 0..8),
        has_end in any::<bool>(),
        cut in 1usize..40_000,
    ) {
        let mut text = lines.iter().map(|len| "x".repeat(*len)).collect::<Vec<_>>().join("\n").into_bytes();
        text.extend(has_end.then_some(b'\n'));
        let pieces: Vec<&[u8]> = text.chunks(cut).collect();
        let mut whole = Vec::new();
        for record in records(&pieces) {
            prop_assert!(record.len() <= RECORD_MAX);
            let body = record.strip_prefix("T stdout ").unwrap();
            let (tag, rest) = body.split_at(2);
            whole.extend_from_slice(rest.strip_suffix('\n').unwrap().as_bytes());
            if tag == "F " {
                whole.push(b'\n');
            }
        }
        if !text.is_empty() && text.last() != Some(&b'\n') {
            whole.pop();
        }
        prop_assert_eq!(whole, text);
    }
}
