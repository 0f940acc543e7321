//! Terminals: the one of the person who started us, and those of containers.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// While it lives, the terminal hands over every key as it is pressed and interprets none.
#[derive(Debug)]
pub struct Raw {
    terminal: OwnedFd,
    before: Saved,
}

#[derive(Clone, Copy)]
struct Saved(libc::termios);

impl std::fmt::Debug for Saved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Saved")
    }
}

/// Rows and columns, if `terminal` is one.
#[must_use]
#[allow(unsafe_code)]
pub fn size(terminal: &impl AsRawFd) -> Option<(u16, u16)> {
    let mut size = MaybeUninit::<libc::winsize>::zeroed();
    // SAFETY: the descriptor is open for as long as it is borrowed, and the pointer is to a whole winsize.
    let answer = unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCGWINSZ, size.as_mut_ptr()) };
    if answer != 0 {
        return None;
    }
    // SAFETY: it was zeroed, and every bit pattern is a winsize.
    let size = unsafe { size.assume_init() };
    (size.ws_row > 0 && size.ws_col > 0).then_some((size.ws_row, size.ws_col))
}

/// Gives `terminal` another size. Whoever runs in it is told by SIGWINCH.
#[allow(unsafe_code)]
pub fn set_size(terminal: &impl AsRawFd, rows: u16, columns: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the descriptor is open for as long as it is borrowed, and the pointer is to a whole winsize.
    match unsafe { libc::ioctl(terminal.as_raw_fd(), libc::TIOCSWINSZ, &raw const size) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

// === impl Raw ===

impl Raw {
    /// Fails when `terminal` is none.
    #[allow(unsafe_code)]
    pub fn new(terminal: OwnedFd) -> io::Result<Self> {
        let mut now = MaybeUninit::<libc::termios>::zeroed();
        // SAFETY: the descriptor is ours, and the pointer is to a whole termios.
        if unsafe { libc::tcgetattr(terminal.as_raw_fd(), now.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: tcgetattr has filled it.
        let before = unsafe { now.assume_init() };
        let mut raw = before;
        // SAFETY: the pointer is to a whole termios.
        unsafe { libc::cfmakeraw(&raw mut raw) };
        let this = Self { terminal, before: Saved(before) };
        this.set(&raw)?;
        Ok(this)
    }

    #[allow(unsafe_code)]
    fn set(&self, settings: &libc::termios) -> io::Result<()> {
        // SAFETY: the descriptor is ours, and the reference is to a whole termios.
        match unsafe { libc::tcsetattr(self.terminal.as_raw_fd(), libc::TCSADRAIN, settings) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Whoever sits there sees for himself whether it worked.
        let _ = self.set(&self.before.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_terminal_is_told_apart() -> io::Result<()> {
        let file = std::fs::File::open("/dev/null")?;
        assert_eq!(size(&file), None);
        assert!(Raw::new(file.into()).is_err());
        Ok(())
    }
}
