//! Archives between a file, or a pipe, and whoever has the connection.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use cri::archives_v1::ImportRequest;
use tokio::sync::mpsc;

/// What is sent of an archive at once; less than a message of gRPC may have.
const PIECE: usize = 1 << 20;

/// Until the file ends, or nobody wants more of it. `-` is standard input.
pub(super) fn send(path: &Path, pin: bool, to: &mpsc::Sender<ImportRequest>) -> io::Result<()> {
    let mut from: Box<dyn Read> = match path.to_str() {
        Some("-") => Box::new(io::stdin().lock()),
        _ => Box::new(File::open(path)?),
    };
    loop {
        let mut data = vec![0; PIECE];
        let n = from.read(&mut data)?;
        data.truncate(n);
        if n == 0 || to.blocking_send(ImportRequest { data, pin }).is_err() {
            return Ok(());
        }
    }
}

/// Pieces, then none; a file that ends otherwise is not kept. It lies beside its place until it is whole.
pub(super) fn receive(path: &Path, mut from: mpsc::Receiver<Option<Vec<u8>>>) -> io::Result<()> {
    if path.as_os_str() == "-" {
        return copy(&mut from, &mut io::stdout().lock());
    }
    // A device or a pipe takes what it is given; another file in its place would be no device for anybody.
    if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return File::options().write(true).open(path).and_then(|mut to| copy(&mut from, &mut to));
    }
    let mut half = path.as_os_str().to_owned();
    half.push(".part");
    let written = File::create(&half).and_then(|mut file| copy(&mut from, &mut file));
    let kept = written.and_then(|()| fs::rename(&half, path));
    if kept.is_err() {
        // The error is the news.
        let _ = fs::remove_file(&half);
    }
    kept
}

fn copy(from: &mut mpsc::Receiver<Option<Vec<u8>>>, to: &mut impl Write) -> io::Result<()> {
    loop {
        match from.blocking_recv() {
            Some(Some(piece)) => to.write_all(&piece)?,
            Some(None) => return to.flush(),
            None => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_whole_or_not_there() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        for (pieces, is_whole) in
            [(vec![Some(b"ab".to_vec()), None], true), (vec![Some(b"cd".to_vec())], false)]
        {
            let (to, from) = mpsc::channel(2);
            pieces.into_iter().for_each(|piece| to.try_send(piece).unwrap());
            drop(to);
            assert_eq!(receive(&path, from).is_ok(), is_whole);
            // What was there before stays.
            assert_eq!(fs::read(&path).unwrap(), b"ab");
            assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn what_is_no_file_is_written_to_and_stays_what_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("device");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        let (to, from) = mpsc::channel(2);
        to.try_send(Some(b"ab".to_vec())).unwrap();
        to.try_send(None).unwrap();
        receive(&path, from).unwrap();
        assert!(path.is_symlink() && !Path::new("/dev/null").is_file());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        let (_to, from) = mpsc::channel(2);
        assert!(receive(dir.path(), from).is_err());
    }

    #[test]
    fn a_file_is_sent_in_pieces_until_nobody_wants_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.tar");
        fs::write(&path, vec![7; PIECE + 3]).unwrap();
        let (to, mut from) = mpsc::channel(4);
        send(&path, true, &to).unwrap();
        drop(to);
        let mut sizes = Vec::new();
        while let Some(piece) = from.blocking_recv() {
            assert!(piece.pin);
            sizes.push(piece.data.len());
        }
        assert_eq!(sizes, [PIECE, 3]);
        let (to, from) = mpsc::channel(1);
        drop(from);
        send(&path, true, &to).unwrap();
        assert!(send(&dir.path().join("none"), true, &to).is_err());
    }
}
