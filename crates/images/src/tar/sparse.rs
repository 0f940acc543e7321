//! Files with holes: GNU's four ways to say where their bytes belong.

use super::header::{BLOCK, Raw, decimal, number};
use super::{Entry, TarError, malformed};

/// Of one file. A map is kept in memory while its file is written.
const RUNS_MAX: usize = 100_000;

/// A run of bytes that is in the archive: what lies between two of them is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    pub offset: u64,
    pub length: u64,
}

/// What the records of an extended header have said so far.
#[derive(Debug, Default)]
pub(super) struct Form {
    version: (Option<u64>, Option<u64>),
    size: Option<u64>,
    offsets: Vec<u64>,
    lengths: Vec<u64>,
}

/// Where the bytes of a file belong.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) size: u64,
    runs: Vec<Hole>,
    /// It stands in front of the bytes themselves.
    is_in_content: bool,
}

// === impl Form ===

impl Form {
    pub(super) fn take(&mut self, key: &[u8], value: &[u8], entry: &mut Entry) -> Result<(), TarError> {
        match key {
            b"GNU.sparse.major" => self.version.0 = Some(decimal(value)?),
            b"GNU.sparse.minor" => self.version.1 = Some(decimal(value)?),
            b"GNU.sparse.name" => entry.path = value.to_vec(),
            b"GNU.sparse.size" | b"GNU.sparse.realsize" => self.size = Some(decimal(value)?),
            b"GNU.sparse.offset" => push(&mut self.offsets, decimal(value)?)?,
            b"GNU.sparse.numbytes" => push(&mut self.lengths, decimal(value)?)?,
            b"GNU.sparse.map" if !value.is_empty() => {
                for (i, number) in value.split(|b| *b == b',').enumerate() {
                    let side = if i % 2 == 0 { &mut self.offsets } else { &mut self.lengths };
                    push(side, decimal(number)?)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn map(self) -> Result<Option<Map>, TarError> {
        let is_in_content = self.version == (Some(1), Some(0));
        let Some(size) = self.size else { return Ok(None) };
        if self.offsets.len() != self.lengths.len() {
            return Err(malformed("a map of holes whose numbers do not pair"));
        }
        let runs = self.offsets.into_iter().zip(self.lengths);
        let runs = runs.map(|(offset, length)| Hole { offset, length }).collect();
        Ok(Some(Map { size, runs, is_in_content }))
    }
}

// === impl Map ===

impl Map {
    /// Four runs in the header, 21 in each block behind it.
    pub(super) fn of_gnu_header(
        raw: &Raw,
        mut next: impl FnMut() -> Result<Raw, TarError>,
    ) -> Result<Map, TarError> {
        let positive =
            |n: i64| u64::try_from(n).map_err(|_| malformed("a negative number in a map of holes"));
        let size = positive(number(&raw[483..495])?)?;
        let mut runs = Vec::new();
        let mut take = |field: &[u8]| -> Result<(), TarError> {
            for pair in field.chunks_exact(24).filter(|pair| pair[0] != 0) {
                let (offset, length) = (number(&pair[..12])?, number(&pair[12..])?);
                push(&mut runs, Hole { offset: positive(offset)?, length: positive(length)? })?;
            }
            Ok(())
        };
        take(&raw[386..482])?;
        let mut is_extended = raw[482] != 0;
        while is_extended {
            let block = next()?;
            take(&block[..504])?;
            is_extended = block[504] != 0;
        }
        Ok(Map { size, runs, is_in_content: false })
    }

    /// Reads the map from the content, where it is there: decimal numbers, one a line, filled up to a block.
    pub(super) fn read(
        mut self,
        mut exact: impl FnMut(&mut [u8]) -> Result<(), TarError>,
    ) -> Result<Map, TarError> {
        if !self.is_in_content {
            return Ok(self);
        }
        let mut text = Vec::new();
        let mut at = 0;
        let mut line = |text: &mut Vec<u8>| loop {
            if let Some(end) = text[at..].iter().position(|b| *b == b'\n') {
                let number = decimal(&text[at..at + end]);
                at += end + 1;
                return number;
            }
            if text.len() - at > 2 * BLOCK {
                return Err(malformed("a map of holes that is none"));
            }
            let mut block = [0; BLOCK];
            exact(&mut block)?;
            text.drain(..at);
            at = 0;
            text.extend_from_slice(&block);
        };
        let count = line(&mut text)?;
        for _ in 0..count {
            let run = Hole { offset: line(&mut text)?, length: line(&mut text)? };
            push(&mut self.runs, run)?;
        }
        Ok(self)
    }

    /// In order, without overlaps, within the file, and as many bytes as the archive has.
    pub(super) fn checked(self, in_archive: u64) -> Result<Vec<Hole>, TarError> {
        let mut end = 0u64;
        let mut bytes = 0u64;
        for run in &self.runs {
            let next =
                run.offset.checked_add(run.length).filter(|next| *next <= self.size && run.offset >= end);
            end = next.ok_or_else(|| malformed("a map of holes that leads out of its file"))?;
            bytes += run.length;
        }
        if bytes != in_archive {
            return Err(malformed("a map of holes that does not fit its bytes"));
        }
        Ok(self.runs)
    }
}

fn push<T>(all: &mut Vec<T>, one: T) -> Result<(), TarError> {
    if all.len() >= RUNS_MAX {
        return Err(malformed("a map of too many holes"));
    }
    all.push(one);
    Ok(())
}
