//! What is inside the machine: a directory that becomes its root.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufWriter;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use fixture::{Doing, Failure, Result};

use super::{BEGIN, END, Machine, Suite, cpio};
use crate::layout::Layout;

/// Programs of this machine that the tests call.
const TOOLS: [&str; 7] = ["ip", "unshare", "nsenter", "sh", "cat", "sleep", "mount"];

/// Kernel modules by directory, and those that are needed alone.
const MODULE_DIRS: [&str; 16] = [
    "net/netfilter",
    "net/ipv4",
    "net/ipv6",
    "net/bridge",
    "net/llc",
    "net/802",
    "net/sctp",
    "net/dns_resolver",
    "fs/nfs",
    "fs/nfsd",
    "fs/nfs_common",
    "fs/lockd",
    "fs/netfs",
    "fs/fscache",
    "lib",
    "crypto",
];
const MODULES: [&str; 4] = [
    "drivers/net/dummy.ko",
    "drivers/net/veth.ko",
    "net/sunrpc/sunrpc.ko",
    "net/sunrpc/auth_gss/auth_rpcgss.ko",
];

/// The kernel asks for most modules by itself; these it does not ask for in a namespace.
const LOADED: &str = "nf_tables nft_compat nf_conntrack nf_nat xt_set ip_set ip_vs ip_vs_rr dummy veth xt_comment xt_mark \
    xt_conntrack xt_addrtype xt_MASQUERADE ipt_REJECT ip6t_REJECT xt_nat ip_set_hash_ip ip_set_hash_ipport \
    ip_set_hash_ipportip ip_set_hash_ipportnet ip_set_bitmap_port nft_chain_nat nft_ct nft_nat nft_numgen nft_masq \
    nft_reject_inet nft_fib_ipv4 nft_fib_ipv6 sctp";

/// Makes the archive and says where it is.
pub(super) fn pack(layout: &Layout, machine: &Machine, suites: &[Suite]) -> Result<PathBuf> {
    let mut tree = Tree { root: layout.target.join("vm"), known: BTreeSet::new() };
    let _ = fs::remove_dir_all(&tree.root);
    for dir in
        ["proc", "sys", "dev", "tmp", "run", "tests", "bin", "sbin", "lib", "lib64", "usr/bin", "usr/sbin"]
    {
        tree.make(dir)?;
    }
    // First, so that libraries of this machine, which are not older, take the place of those in the packages.
    let libraries = super::libraries(&machine.root);
    tree.add_program(&machine.root.join("bin/kmod"), "sbin/modprobe", &libraries)?;
    tree.add_systemd(&machine.systemd)?;
    tree.add_nfs(&machine.nfs)?;
    for tool in TOOLS {
        tree.add_program(&find(tool)?, &format!("bin/{tool}"), &[])?;
    }
    for suite in suites {
        tree.add_program(&suite.program, &format!("tests/{}", suite.name), &[])?;
    }
    tree.add_cache(&layout.cache)?;
    tree.add_modules(&machine.root)?;
    let (late, early): (Vec<&Suite>, Vec<&Suite>) = suites.iter().partition(|s| s.is_under_systemd());
    tree.write("init", &init(&early, late.is_empty()))?;
    tree.write("tests/under_systemd", &under_systemd(&late))?;
    let archive = layout.target.join("vm.cpio");
    let file = fs::File::create(&archive).doing(|| format!("making {}", archive.display()))?;
    cpio::write(&tree.root, &mut BufWriter::new(file)).doing(|| format!("writing {}", archive.display()))?;
    Ok(archive)
}

/// What every test is told. What is made for these tests lacks nothing, so none may be skipped.
const ENVIRONMENT: &str = "export PATH=/cache/bin/iptables-nft:/bin:/sbin:/usr/bin:/usr/sbin\n\
    export LONGSHORE_NODE_CACHE=/cache LONGSHORE_SKIPS_NOTHING=1 LONGSHORE_MACHINE=emulated RUST_BACKTRACE=1\n";

/// A unit that is all of the system: systemd starts it and nothing else.
const UNIT: &str = "[Unit]\n\
    DefaultDependencies=no\n\
    [Service]\n\
    Type=oneshot\n\
    ExecStart=/tests/under_systemd\n\
    StandardOutput=tty\n\
    StandardError=tty\n\
    TTYPath=/dev/console\n";

/// The first process: it mounts what a system has, runs the tests, and ends the machine or becomes systemd.
fn init(suites: &[&Suite], is_all: bool) -> String {
    let next = match is_all {
        true => end(),
        false => "echo $code > /code\nexec /lib/systemd/systemd --unit=tests.service\n".to_owned(),
    };
    format!(
        "#!/bin/sh\n\
         {ENVIRONMENT}\
         mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
         mount -t tmpfs tmp /tmp; mount -t tmpfs run /run\n\
         echo \"{BEGIN}\"\n\
         modprobe -a {LOADED}\n\
         ip link set lo up\n\
         code=0\n\
         {}{next}",
        runs(suites)
    )
}

/// The tests that have systemd for their first process.
fn under_systemd(suites: &[&Suite]) -> String {
    format!("#!/bin/sh\n{ENVIRONMENT}read code < /code\n{}{}", runs(suites), end())
}

fn runs(suites: &[&Suite]) -> String {
    let run = |suite: &&Suite| {
        let filter = suite.filter.as_deref().unwrap_or("");
        format!("/tests/{} --test-threads 2 {filter} || code=$?\n", suite.name)
    };
    suites.iter().map(run).collect()
}

/// Says how it went, and ends the machine.
fn end() -> String {
    format!("echo \"{END}$code\"\necho o > /proc/sysrq-trigger\nsleep 60\n")
}

fn find(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    places
        .find_map(|dir| Some(dir.join(program)).filter(|path| path.is_file()))
        .ok_or_else(|| Failure::new(format!("{program} is not on this machine")))
}

struct Tree {
    root: PathBuf,
    /// Libraries that are inside already.
    known: BTreeSet<PathBuf>,
}

// === impl Tree ===

impl Tree {
    fn make(&self, dir: &str) -> Result<()> {
        let dir = self.root.join(dir);
        fs::create_dir_all(&dir).doing(|| format!("making {}", dir.display()))
    }

    fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.root.join(name);
        fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
            .doing(|| format!("writing {}", path.display()))
    }

    /// With the libraries it is linked to, at the paths where it looks for them.
    fn add_program(&mut self, from: &Path, to: &str, libraries: &[PathBuf]) -> Result<()> {
        self.copy(from, to)?;
        let path = std::env::join_paths(libraries).doing(|| "joining paths".into())?;
        let out = Command::new("ldd")
            .arg(from)
            .env("LD_LIBRARY_PATH", &path)
            .output()
            .doing(|| format!("asking for the libraries of {}", from.display()))?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        for library in text.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from) {
            if !self.known.insert(library.clone()) {
                continue;
            }
            // Those of the unpacked root are found where the machine's own would be.
            let inside = libraries.iter().find_map(|dir| {
                library.strip_prefix(dir).ok().map(|name| Path::new("lib/x86_64-linux-gnu").join(name))
            });
            let inside = inside.unwrap_or_else(|| library.strip_prefix("/").unwrap_or(&library).to_owned());
            self.copy(&library, &inside.to_string_lossy())?;
        }
        Ok(())
    }

    /// The first process of most systems, and the one unit it has here.
    fn add_systemd(&mut self, root: &Path) -> Result<()> {
        // Its own are in a directory of theirs, which comes first because it is below another one.
        let mut libraries = vec![root.join("usr/lib/x86_64-linux-gnu/systemd")];
        libraries.extend(super::libraries(root));
        self.add_program(&root.join("lib/systemd/systemd"), "lib/systemd/systemd", &libraries)?;
        self.make("etc/systemd/system")?;
        self.write("etc/systemd/system/tests.service", UNIT)
    }

    /// A file server and what mounts from it. They look names of protocols up in files.
    fn add_nfs(&mut self, root: &Path) -> Result<()> {
        let libraries = super::libraries(root);
        for program in ["usr/sbin/rpc.nfsd", "usr/sbin/rpc.mountd", "usr/sbin/exportfs", "sbin/mount.nfs"] {
            self.add_program(&root.join(program), program, &libraries)?;
        }
        for file in
            ["etc/netconfig", "etc/protocols", "etc/services", "var/lib/nfs/etab", "var/lib/nfs/rmtab"]
        {
            self.copy(&root.join(file), file)?;
        }
        Ok(())
    }

    fn copy(&self, from: &Path, to: &str) -> Result<()> {
        let goal = self.root.join(to);
        if let Some(dir) = goal.parent() {
            fs::create_dir_all(dir).doing(|| format!("making {}", dir.display()))?;
        }
        fs::copy(from, &goal).map(drop).doing(|| format!("copying {}", from.display()))
    }

    /// nft and iptables where the tests look for unpacked packages. On a system of their own they need no scripts that
    /// tell them where their libraries are, which would be most of what an emulated processor computes.
    fn add_cache(&mut self, cache: &Path) -> Result<()> {
        let libraries = cache.join("lib");
        let entries = fs::read_dir(&libraries).doing(|| format!("listing {}", libraries.display()))?;
        let libraries: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path().join("usr/lib/x86_64-linux-gnu")).collect();
        self.add_program(&cache.join("nftables/usr/sbin/nft"), "cache/bin/nft", &libraries)?;
        for flavour in ["nft", "legacy"] {
            let program = format!("iptables/usr/sbin/xtables-{flavour}-multi");
            self.add_program(&cache.join(&program), &format!("cache/{program}"), &libraries)?;
            let dir = format!("cache/bin/iptables-{flavour}");
            self.make(&dir)?;
            for name in ["iptables", "ip6tables"] {
                for part in ["", "-save", "-restore"] {
                    let link = self.root.join(&dir).join(format!("{name}{part}"));
                    symlink(format!("../../{program}"), &link)
                        .doing(|| format!("linking {}", link.display()))?;
                }
            }
        }
        let extensions = "usr/lib/x86_64-linux-gnu/xtables";
        copy_all(&cache.join("iptables").join(extensions), &self.root.join(extensions))
    }

    fn add_modules(&self, machine: &Path) -> Result<()> {
        let all = machine.join("lib/modules");
        let release = fs::read_dir(&all)
            .doing(|| format!("listing {}", all.display()))?
            .flatten()
            .map(|entry| entry.file_name())
            .next()
            .ok_or_else(|| Failure::new("the kernel has no modules"))?;
        let (from, to) = (all.join(&release), self.root.join("lib/modules").join(&release));
        for part in MODULE_DIRS.iter().chain(&MODULES) {
            copy_all(&from.join("kernel").join(part), &to.join("kernel").join(part))?;
        }
        for name in ["modules.order", "modules.builtin", "modules.builtin.modinfo"] {
            copy_all(&from.join(name), &to.join(name))?;
        }
        let status = super::program(machine, "depmod", "bin/kmod")?
            .arg("-b")
            .arg(&self.root)
            .arg(&release)
            .status()
            .doing(|| "running depmod".into())?;
        match status.success() {
            true => Ok(()),
            false => Err(Failure::new(format!("depmod failed: {status}"))),
        }
    }
}

/// A file, or a directory with everything in it; links are followed. What is not there is not missed.
fn copy_all(from: &Path, to: &Path) -> Result<()> {
    let Ok(about) = fs::metadata(from) else { return Ok(()) };
    let parent = if about.is_dir() { Some(to) } else { to.parent() };
    if let Some(dir) = parent {
        fs::create_dir_all(dir).doing(|| format!("making {}", dir.display()))?;
    }
    if about.is_file() {
        return fs::copy(from, to).map(drop).doing(|| format!("copying {}", from.display()));
    }
    for entry in fs::read_dir(from).doing(|| format!("listing {}", from.display()))?.flatten() {
        copy_all(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}
