//! The keeper's program. Descriptor 0 is the control socket, 1 the socket on which a later daemon connects.
#![no_std]
#![no_main]
#![allow(unsafe_code)]

mod child;
#[path = "../../runtime-core/src/framing.rs"]
mod framing;
mod jobs;
mod kernel;
mod logs;
mod service;
#[path = "../../runtime-core/src/wire.rs"]
mod wire;

use kernel::*;

#[cfg(target_arch = "x86_64")]
core::arch::global_asm!(".globl _start", "_start:", "xor %ebp, %ebp", "and $-16, %rsp", "call begin", options(att_syntax));
#[cfg(target_arch = "aarch64")]
core::arch::global_asm!(".globl _start", "_start:", "mov x29, #0", "mov x30, #0", "bl begin");

#[unsafe(no_mangle)]
extern "C" fn begin() -> ! {
    if let Err(errno) = retire() {
        exit(errno & 0x7f);
    }
    service::run()
}

/// Leaves everything that the daemon had: its session, signals, descriptors, mounts. What is left is an empty root
/// with one directory.
fn retire() -> Result<()> {
    let _ = call!(SETSID);
    let default = [0u64; 4];
    for signal in 1..=64 {
        let _ = call!(RT_SIGACTION, signal, default.as_ptr(), 0, 8);
    }
    let none = 0u64;
    call!(RT_SIGPROCMASK, 2, &raw const none, 0, 8)?;
    call!(CLOSE_RANGE, 3, u32::MAX, 0)?;
    let _ = call!(PRCTL, 4, 0, 0, 0, 0);
    let _ = call!(PRCTL, 15, b"keeper\0".as_ptr(), 0, 0, 0);
    call!(UMASK, 0o022)?;
    call!(UNSHARE, 0x0002_0000)?;
    let root = b"/\0".as_ptr();
    // MS_REC | MS_PRIVATE: what happens here is not seen outside.
    call!(MOUNT, 0, root, 0, 0x4000 | 0x40000, 0)?;
    let empty = fsmount(b"tmpfs\0", b"size\x0064k\0nr_inodes\x008\0mode\x00700\0", 0xe)?;
    let at = call!(OPENAT, AT_FDCWD, root, O_PATH | O_CLOEXEC as u64, 0)? as Fd;
    move_mount(empty, at)?;
    call!(FCHDIR, empty)?;
    let here = b".\0".as_ptr();
    // The first root of a machine, an initramfs, cannot be exchanged; it stays below.
    match call!(PIVOT_ROOT, here, here) {
        Ok(_) => call!(UMOUNT2, here, 2)?,
        Err(_) => call!(CHROOT, here)?,
    };
    call!(CHDIR, root)?;
    close(at);
    call!(MKDIRAT, empty, child::STAGE[1..].as_ptr(), 0o700)?;
    close(empty);
    Ok(())
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

/// `core` was compiled to unwind and asks for it; nothing here does.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The compiler calls these four for itself. Assembly, so that it does not make a call to them out of them.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        core::arch::asm!("rep movsb", inout("rcx") len => _, inout("rdi") to => _, inout("rsi") from => _, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller vouches for both ranges.
    unsafe {
        core::arch::asm!("cbz {n}, 3f", "2: ldrb {t:w}, [{f}], #1", "strb {t:w}, [{d}], #1", "subs {n}, {n}, #1", "b.ne 2b", "3:",
            n = inout(reg) len => _, f = inout(reg) from => _, d = inout(reg) to => _, t = out(reg) _, options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
    if (to as usize).wrapping_sub(from as usize) >= len {
        // SAFETY: copying upwards never overwrites what is still to be read.
        return unsafe { memcpy(to, from, len) };
    }
    let mut i = len;
    while i > 0 {
        i -= 1;
        // SAFETY: the caller vouches for both ranges. Volatile keeps this from becoming a call to itself.
        unsafe { to.add(i).write_volatile(from.add(i).read_volatile()) };
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memset(to: *mut u8, value: i32, len: usize) -> *mut u8 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller vouches for the range.
    unsafe {
        core::arch::asm!("rep stosb", inout("rcx") len => _, inout("rdi") to => _, in("al") value as u8, options(nostack, preserves_flags));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: the caller vouches for the range.
    unsafe {
        core::arch::asm!("cbz {n}, 3f", "2: strb {v:w}, [{d}], #1", "subs {n}, {n}, #1", "b.ne 2b", "3:",
            n = inout(reg) len => _, d = inout(reg) to => _, v = in(reg) value, options(nostack));
    }
    to
}

#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    let mut i = 0;
    while i < len {
        // SAFETY: the caller vouches for both ranges.
        let (x, y) = unsafe { (a.add(i).read_volatile(), b.add(i).read_volatile()) };
        if x != y {
            return i32::from(x) - i32::from(y);
        }
        i += 1;
    }
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(a: *const u8, b: *const u8, len: usize) -> i32 {
    // SAFETY: as memcmp.
    unsafe { memcmp(a, b, len) }
}
