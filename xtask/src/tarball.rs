//! Writes ustar archives that are the same, byte for byte, for the same content.

/// An archive being written in memory.
#[derive(Debug, Default)]
pub(crate) struct Tarball {
    bytes: Vec<u8>,
}

const BLOCK: usize = 512;

// === impl Tarball ===

impl Tarball {
    pub(crate) fn file(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.header(name, mode, content.len(), b'0', "");
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    pub(crate) fn dir(&mut self, name: &str, mode: u32) {
        self.header(name, mode, 0, b'5', "");
    }

    pub(crate) fn symlink(&mut self, name: &str, to: &str) {
        self.header(name, 0o777, 0, b'2', to);
    }

    /// Two empty blocks end an archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }

    fn header(&mut self, name: &str, mode: u32, size: usize, kind: u8, link: &str) {
        assert!(name.len() < 100 && link.len() < 100, "{name:?} does not fit a ustar header");
        let mut block = [0u8; BLOCK];
        let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
        put(0, name);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{size:011o}"));
        put(136, "00000000000");
        put(148, "        ");
        put(157, link);
        put(257, "ustar");
        put(263, "00");
        block[156] = kind;
        let sum: u32 = block.iter().map(|b| u32::from(*b)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&block);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn tar_itself_can_read_it() -> std::io::Result<()> {
        let mut tarball = Tarball::default();
        tarball.dir("tmp/", 0o1777);
        tarball.file("bin/hello", 0o755, b"world");
        tarball.symlink("bin/hi", "hello");
        let mut tar = Command::new("tar").arg("-tv").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = tar.stdin.take() {
            stdin.write_all(&tarball.finish())?;
        }
        let out = tar.wait_with_output()?;
        let listing = String::from_utf8_lossy(&out.stdout).into_owned();
        let columns: Vec<Vec<&str>> = listing
            .lines()
            .map(|line| {
                let words: Vec<&str> = line.split_whitespace().collect();
                [&words[..1], &words[2..3], &words[5..]].concat()
            })
            .collect();
        assert_eq!(
            columns,
            [
                vec!["drwxrwxrwt", "0", "tmp/"],
                vec!["-rwxr-xr-x", "5", "bin/hello"],
                vec!["lrwxrwxrwx", "0", "bin/hi", "->", "hello"]
            ]
        );
        Ok(())
    }
}
