//! Unpacks Debian packages into target/cache without installing anything.
//!
//! Each package lands in `target/cache/<package>-<version>/`; each tool that others ask for is a symlink beside it
//! (`target/cache/containerd-2 -> containerd-2.1.9…`). `target/cache/stamp` lists what was unpacked. A package whose
//! link is in the stamp is not asked for again, so a second run needs no network.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::{Doing, Failure, Result};

use crate::apt::Apt;
use crate::layout::Layout;
use crate::terminal::step;

const SUITES: [&str; 3] = ["bookworm", "trixie", "sid"];

/// What the node needs: the name others know it by, the suite it is pinned to, the package.
///
/// containerd and kubectl come in the version we develop on and in the oldest one we promise to work with. runc and
/// everything with shared libraries come from bookworm, because newer builds ask for a newer libc than the machine may
/// have.
const WANTED: &[(&str, &str, &str)] = &[
    ("containerd-2", "sid", "containerd"),
    ("containerd-1.6", "bookworm", "containerd"),
    ("runc", "bookworm", "runc"),
    ("cni", "sid", "containernetworking-plugins"),
    ("kubectl", "sid", "kubectl"),
    ("kubectl-1.32", "trixie", "kubectl"),
    ("busybox", "bookworm", "busybox-static"),
    ("nftables", "bookworm", "nftables"),
    ("iptables", "bookworm", "iptables"),
    ("registry", "bookworm", "docker-registry"),
    ("lib/nftables", "bookworm", "libnftables1"),
    ("lib/nftnl", "bookworm", "libnftnl11"),
    ("lib/mnl", "bookworm", "libmnl0"),
    ("lib/xtables", "bookworm", "libxtables12"),
    ("lib/ip4tc", "bookworm", "libip4tc2"),
    ("lib/ip6tc", "bookworm", "libip6tc2"),
    ("lib/nfct", "bookworm", "libnetfilter-conntrack3"),
    ("lib/nfnetlink", "bookworm", "libnfnetlink0"),
    ("lib/jansson", "bookworm", "libjansson4"),
    ("lib/gmp", "bookworm", "libgmp10"),
    ("lib/edit", "bookworm", "libedit2"),
    ("lib/bsd", "bookworm", "libbsd0"),
    ("lib/md", "bookworm", "libmd0"),
];

/// Makes every wanted tool present in the cache.
pub(crate) fn fetch(layout: &Layout, refresh: bool) -> Result<()> {
    fs::create_dir_all(layout.cache.join("lib")).doing(|| format!("making {}", layout.cache.display()))?;
    let _lock = lock(&layout.cache)?;
    let mut stamp = if refresh { BTreeMap::new() } else { read_stamp(&layout.cache) };
    for suite in SUITES {
        let missing: Vec<_> = WANTED
            .iter()
            .filter(|(link, from, _)| *from == suite && !is_present(&layout.cache, &stamp, link))
            .collect();
        if missing.is_empty() {
            continue;
        }
        require_tools()?;
        step(format_args!("reading the package lists of Debian {suite}"));
        let apt = Apt::new(&layout.cache.join("apt"), suite)?;
        apt.update()?;
        for (link, _, package) in missing {
            let version = apt.version(package)?;
            step(format_args!("unpacking {package} {version}"));
            let dir = unpack(&layout.cache, &apt, package, &version)?;
            relink(&layout.cache, link, &dir)?;
            stamp.insert((*link).to_owned(), dir);
            write_stamp(&layout.cache, &stamp)?;
        }
    }
    write_programs(&layout.cache)
}

/// A kernel, its modules, and qemu with every library it needs, in one root: `target/cache/machine`. Only who asks for it
/// has it.
pub(crate) fn fetch_machine(layout: &Layout) -> Result<PathBuf> {
    const META: &str = "linux-image-cloud-amd64";
    fetch_root(layout, "machine", |apt| {
        let mut packages = apt.closure(&["qemu-system-x86", "kmod"])?;
        // The kernel alone: what it depends on is for those who install it.
        let kernel = apt.field(META, "Depends")?;
        let kernel = kernel.split([' ', ',']).next().unwrap_or_default().to_owned();
        let version = apt.version(&kernel)?;
        packages.push((kernel, version));
        Ok(packages)
    })
}

/// systemd with every library it needs, in one root: `target/cache/systemd`. It runs in the emulated machine only.
pub(crate) fn fetch_systemd(layout: &Layout) -> Result<PathBuf> {
    fetch_root(layout, "systemd", |apt| apt.closure(&["systemd"]))
}

/// An NFS server and client with every library they need, in one root: `target/cache/nfs`. They run in the emulated
/// machine only.
pub(crate) fn fetch_nfs(layout: &Layout) -> Result<PathBuf> {
    // Their programs alone: most of what they depend on is for those who install them.
    const PROGRAMS: [&str; 3] = ["nfs-kernel-server", "nfs-common", "netbase"];
    const LIBRARIES: [&str; 5] = ["libtirpc3", "libwrap0", "libmount1", "libblkid1", "libuuid1"];
    fetch_root(layout, "nfs", |apt| {
        let mut packages = apt.closure(&LIBRARIES)?;
        for program in PROGRAMS {
            packages.push((program.to_owned(), apt.version(program)?));
        }
        Ok(packages)
    })
}

/// A browser without a window, with its driver, fonts and the libraries that it opens, in one root: `target/cache/browser`.
pub(crate) fn fetch_browser(layout: &Layout) -> Result<PathBuf> {
    // What chromium depends on besides is for those who have a screen, a graphics card or a microphone: four hundred megabytes.
    const PACKAGES: &str = "chromium-headless-shell chromium-driver chromium-common fontconfig-config fonts-dejavu-core \
        fonts-wqy-microhei libasound2 libasyncns0 libatk1.0-0 libatspi2.0-0 libbrotli1 libbsd0 libcap2 libdav1d6 \
        libdbus-1-3 libdouble-conversion3 libdrm2 libexpat1 libffi8 libflac12 libfontconfig1 libfreetype6 libgbm1 \
        libgcrypt20 libglib2.0-0 libgpg-error0 libgraphite2-3 libharfbuzz-subset0 libharfbuzz0b libjpeg62-turbo \
        liblz4-1 liblzma5 libmd0 libminizip1 libmount1 libmp3lame0 libmpg123-0 libnspr4 libnss3 libogg0 libopenh264-7 \
        libopus0 libpng16-16 libpulse0 libsndfile1 libsqlite3-0 libsystemd0 libudev1 libvorbis0a libvorbisenc2 \
        libwayland-server0 libx11-6 libxau6 libxcb-randr0 libxcb-shm0 libxcb1 libxcomposite1 libxdamage1 libxdmcp6 \
        libxext6 libxfixes3 libxi6 libxkbcommon0 libxnvctrl0 libxrandr2 libxrender1 libzstd1 zlib1g";
    fetch_root(layout, "browser", |apt| {
        let named =
            PACKAGES.split_whitespace().map(|package| Ok((package.to_owned(), apt.version(package)?)));
        named.collect()
    })
}

/// Packages of Debian bookworm, unpacked over each other in one directory of the cache.
fn fetch_root(
    layout: &Layout,
    name: &str,
    choose: impl FnOnce(&Apt) -> Result<Vec<(String, String)>>,
) -> Result<PathBuf> {
    let root = layout.cache.join(name);
    let _lock = lock(&layout.cache)?;
    if root.is_dir() {
        return Ok(root);
    }
    require_tools()?;
    step("reading the package lists of Debian bookworm");
    let apt = Apt::new(&layout.cache.join("apt"), "bookworm")?;
    apt.update()?;
    let packages = choose(&apt)?;
    let half = layout.cache.join(format!("{name}.half"));
    let _ = fs::remove_dir_all(&half);
    step(format_args!("unpacking {} packages: {name}", packages.len()));
    for deb in apt.download_all(name, &packages)? {
        extract(&deb, &half)?;
    }
    let _ = fs::remove_dir_all(half.join("usr/share/doc"));
    fs::rename(&half, &root).doing(|| format!("renaming {}", half.display()))?;
    Ok(root)
}

/// Programs that belong to no package: nft and iptables with their libraries beside them, and the janitor, which is this
/// program.
fn write_programs(cache: &Path) -> Result<()> {
    write_iptables(cache)?;
    const NFT: &str = "#!/bin/sh\n\
        here=$(dirname \"$0\")/..\n\
        for dir in \"$here\"/lib/*/usr/lib/*; do LD_LIBRARY_PATH=$dir:$LD_LIBRARY_PATH; done\n\
        export LD_LIBRARY_PATH\n\
        exec \"$here/nftables/usr/sbin/nft\" \"$@\"\n";
    let bin = cache.join("bin");
    fs::create_dir_all(&bin).doing(|| format!("making {}", bin.display()))?;
    // Through the kernel: a build of everything may have replaced the file since this program was started.
    let janitor = fs::read("/proc/self/exe").doing(|| "reading this program".into())?;
    for (name, content) in [("nft", NFT.as_bytes()), ("janitor", &janitor)] {
        write_program(&bin.join(name), content)?;
    }
    Ok(())
}

/// Each flavour under the names that everybody calls, in a directory of its own.
fn write_iptables(cache: &Path) -> Result<()> {
    for flavour in ["nft", "legacy"] {
        let dir = cache.join("bin").join(format!("iptables-{flavour}"));
        fs::create_dir_all(&dir).doing(|| format!("making {}", dir.display()))?;
        for family in ["iptables", "ip6tables"] {
            for part in ["", "-save", "-restore"] {
                let script = format!(
                    "#!/bin/sh\n\
                     here=$(dirname \"$0\")/../..\n\
                     for dir in \"$here\"/lib/*/usr/lib/*; do LD_LIBRARY_PATH=$dir:$LD_LIBRARY_PATH; done\n\
                     XTABLES_LIBDIR=$(echo \"$here\"/iptables/usr/lib/*/xtables)\n\
                     XTABLES_LOCKFILE=${{XTABLES_LOCKFILE:-/tmp/xtables.lock}}\n\
                     export LD_LIBRARY_PATH XTABLES_LIBDIR XTABLES_LOCKFILE\n\
                     exec \"$here/iptables/usr/sbin/{family}-{flavour}{part}\" \"$@\"\n"
                );
                write_program(&dir.join(format!("{family}{part}")), script.as_bytes())?;
            }
        }
    }
    Ok(())
}

/// Whole or not at all: another run may be executing the old one.
fn write_program(goal: &Path, content: &[u8]) -> Result<()> {
    if fs::read(goal).is_ok_and(|old| old == content) {
        return Ok(());
    }
    let half = goal.with_extension("half");
    fs::write(&half, content)
        .and_then(|()| fs::set_permissions(&half, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&half, goal))
        .doing(|| format!("writing {}", goal.display()))
}

fn is_present(cache: &Path, stamp: &BTreeMap<String, String>, link: &str) -> bool {
    stamp.get(link).is_some_and(|dir| cache.join(dir).is_dir() && cache.join(link).is_dir())
}

fn require_tools() -> Result<()> {
    for tool in ["apt-get", "dpkg-deb"] {
        if Command::new(tool).arg("--version").output().is_err() {
            return Err(Failure::new(format!("{tool} is missing: tools are unpacked from Debian packages")));
        }
    }
    Ok(())
}

/// Unpacks beside the goal and renames, so a run that is cut short leaves nothing that looks whole.
fn unpack(cache: &Path, apt: &Apt, package: &str, version: &str) -> Result<String> {
    let name = format!("{package}-{}", version.replace([':', '~'], "_"));
    let goal = cache.join(&name);
    if goal.is_dir() {
        return Ok(name);
    }
    let deb = apt.download(package, version)?;
    let half = cache.join(format!("{name}.half"));
    let _ = fs::remove_dir_all(&half);
    extract(&deb, &half)?;
    fs::rename(&half, &goal).doing(|| format!("renaming {}", half.display()))?;
    Ok(name)
}

/// Unpacks a package, and forgets the file.
fn extract(deb: &Path, into: &Path) -> Result<()> {
    let status = Command::new("dpkg-deb")
        .arg("-x")
        .args([deb, into])
        .status()
        .doing(|| format!("unpacking {}", deb.display()))?;
    if !status.success() {
        return Err(Failure::new(format!("dpkg-deb -x {} failed: {status}", deb.display())));
    }
    let _ = fs::remove_file(deb);
    Ok(())
}

fn relink(cache: &Path, link: &str, dir: &str) -> Result<()> {
    let path = cache.join(link);
    let _ = fs::remove_file(&path);
    let up = "../".repeat(link.matches('/').count());
    symlink(format!("{up}{dir}"), &path).doing(|| format!("linking {}", path.display()))
}

fn read_stamp(cache: &Path) -> BTreeMap<String, String> {
    let text = fs::read_to_string(cache.join("stamp")).unwrap_or_default();
    text.lines().filter_map(|line| line.split_once(' ')).map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

fn write_stamp(cache: &Path, stamp: &BTreeMap<String, String>) -> Result<()> {
    let text: String = stamp.iter().map(|(link, dir)| format!("{link} {dir}\n")).collect();
    let (half, goal) = (cache.join("stamp.half"), cache.join("stamp"));
    fs::write(&half, text)
        .and_then(|()| fs::rename(&half, &goal))
        .doing(|| format!("writing {}", goal.display()))
}

fn lock(cache: &Path) -> Result<fs::File> {
    let path = cache.join("lock");
    let file = fs::File::create(&path).doing(|| format!("opening {}", path.display()))?;
    file.lock().doing(|| format!("locking {}", path.display()))?;
    Ok(file)
}
