//! `host-local`: addresses of ranges, kept as files, in the layout of upstream's plugin of this name: either can go on where
//! the other left.
//!
//! A file is named by the address and says whose it is. It appears whole: it is written aside and linked into its place, which
//! only one can do. All is under a lock on the file `lock`, as upstream's.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use cni_core::ranges::{HostLocal, RangeSet, Wish};
use cni_core::request::AttachmentId;
use cni_core::success::{Dns, Ip, Success};
use cni_core::{CniError, Code, Request};
use ipnet::IpNet;
use serde_json::Value;

use crate::plugin::Plugin;

pub(crate) const PLUGIN: Plugin = Plugin { name: "host-local", add, del, check, status, gc };

const DATA_DIR: &str = "/var/lib/cni/networks";
const LAST: &str = "last_reserved_ip.";
/// Which addresses an attachment has, without a look into every file.
const INDEX: &str = ".attachments";
const ASIDE: &str = ".reserving";
/// So many are tried before the directory is listed.
const TRIES: usize = 8;
/// A directory of so many is looked through even where the index knows the answer: the index may miss what upstream's plugin did.
const FEW: usize = 512;
const FILE_MAX: u64 = 4096;

/// The addresses of a network, as long as we hold its lock.
#[derive(Debug)]
struct Store {
    dir: PathBuf,
    _lock: File,
}

fn add(request: &Request) -> Result<Value, CniError> {
    let config = HostLocal::read(request)?;
    let wishes = config.wishes()?;
    let mut success = Success { routes: config.routes.clone(), ..Success::default() };
    if let Some(path) = &config.resolv_conf {
        let text = fs::read_to_string(path);
        let text = text.map_err(|e| CniError::field("ipam.resolvConf", format!("reading {path}: {e}")))?;
        success.dns = Dns::of_resolv_conf(&text);
    }
    let store = Store::open(request, &config)?;
    if let Some(ip) = store.has_one(&request.attachment, &config).first() {
        let why = format!("{} has address {ip} already", request.attachment.container);
        return Err(CniError::new(Code::Taken, why));
    }
    let mut given = Vec::new();
    match store.give(&config, &wishes, &request.attachment, &mut given) {
        Ok(ips) => success.ips = ips,
        Err(error) => {
            store.free(&given);
            return Err(error);
        }
    }
    Ok(request.answer(&success))
}

fn del(request: &Request) -> Result<(), CniError> {
    // A range that is not a range any more must not keep an address from coming back.
    let Some(store) = Store::find(request)? else { return Ok(()) };
    store.release(&request.attachment).map_err(|e| store.failed("releasing addresses in", &e))
}

fn check(request: &Request) -> Result<(), CniError> {
    let store = Store::find(request)?;
    let has_one = store.is_some_and(|store| !store.held(&request.attachment).is_empty());
    match has_one {
        true => Ok(()),
        false => {
            let why = format!("{} has no address", request.attachment.container);
            Err(CniError::new(Code::Changed, why))
        }
    }
}

/// Whether there is an address left for one more.
fn status(request: &Request) -> Result<(), CniError> {
    let config = HostLocal::read(request)?;
    let store = Store::open(request, &config)
        .map_err(|e| CniError::new(Code::Unavailable, format!("no address can be kept: {}", e.message)))?;
    let taken = store.taken().map_err(|e| store.failed("listing", &e))?;
    for set in &config.sets {
        if !set.candidates(None).any(|(address, _)| !taken.contains(&address.addr())) {
            return Err(CniError::new(Code::Unavailable, format!("no address is left in {}", set.shown())));
        }
    }
    Ok(())
}

fn gc(request: &Request) -> Result<(), CniError> {
    let valid: HashSet<AttachmentId> = request.valid_attachments()?.into_iter().collect();
    let Some(store) = Store::find(request)? else { return Ok(()) };
    store.keep(&valid).map_err(|e| store.failed("collecting addresses in", &e))
}

fn dir(request: &Request, data_dir: Option<&str>) -> PathBuf {
    Path::new(data_dir.unwrap_or(DATA_DIR)).join(&request.network)
}

// === impl Store ===

impl Store {
    fn open(request: &Request, config: &HostLocal) -> Result<Self, CniError> {
        let dir = dir(request, config.data_dir.as_deref());
        let open = || {
            fs::create_dir_all(dir.join(INDEX))?;
            Self::lock(&dir)
        };
        open().map_err(|e| CniError::io(format_args!("opening {}", dir.display()), &e))
    }

    /// `None` where nothing was ever kept. The ranges do not matter.
    fn find(request: &Request) -> Result<Option<Self>, CniError> {
        let ipam = request.fields().fields("ipam")?;
        let data_dir = match &ipam {
            Some(ipam) => ipam.text("dataDir")?.filter(|dir| !dir.is_empty()),
            None => None,
        };
        let dir = dir(request, data_dir);
        match Self::lock(&dir) {
            Ok(store) => Ok(Some(store)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(CniError::io(format_args!("opening {}", dir.display()), &e)),
        }
    }

    fn lock(dir: &Path) -> io::Result<Self> {
        let lock = File::options().create(true).write(true).truncate(false).open(dir.join("lock"))?;
        lock.lock()?;
        Ok(Self { dir: dir.to_owned(), _lock: lock })
    }

    fn failed(&self, act: &str, cause: &io::Error) -> CniError {
        CniError::io(format_args!("{act} {}", self.dir.display()), cause)
    }

    /// One address for each wish; `given` are those that were written down, even if in the end there is a failure.
    fn give(
        &self,
        config: &HostLocal,
        wishes: &[Wish],
        to: &AttachmentId,
        given: &mut Vec<IpAddr>,
    ) -> Result<Vec<Ip>, CniError> {
        let aside = self.dir.join(ASIDE);
        // What a killed one left there may be linked into its place already: a new file, never new content.
        remove(&aside)
            .and_then(|()| create(&aside, &owner(to)))
            .map_err(|e| self.failed("writing in", &e))?;
        let mut ips = Vec::new();
        for wish in wishes {
            let set = &config.sets[wish.set];
            let (address, gateway) = self.one(set, wish, &aside)?;
            given.push(address.addr());
            let last = self.dir.join(format!("{LAST}{}", wish.set));
            fs::write(last, address.addr().to_string()).map_err(|e| self.failed("writing in", &e))?;
            ips.push(Ip { interface: None, address, gateway: Some(gateway) });
        }
        let _ = fs::remove_file(&aside);
        let lines: Vec<String> = given.iter().map(IpAddr::to_string).collect();
        fs::write(self.index(to), lines.join("\n")).map_err(|e| self.failed("writing in", &e))?;
        Ok(ips)
    }

    fn one(&self, set: &RangeSet, wish: &Wish, aside: &Path) -> Result<(IpNet, IpAddr), CniError> {
        let take = |ip: IpAddr| match fs::hard_link(aside, self.dir.join(ip.to_string())) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(false),
            Err(e) => Err(self.failed("writing in", &e)),
        };
        if let Some(ip) = wish.requested {
            let range = set.range_of(ip).ok_or_else(|| CniError::new(Code::Config, "no such range"))?;
            let address = range.address(ip).ok_or_else(|| CniError::new(Code::Config, "no such address"))?;
            return match take(ip)? {
                true => Ok((address, range.gateway)),
                false => Err(CniError::new(Code::Taken, format!("requested address {ip} is taken"))),
            };
        }
        let mut taken = None;
        for (tries, (address, gateway)) in set.candidates(self.last(wish.set)).enumerate() {
            if tries == TRIES {
                taken = Some(self.taken().map_err(|e| self.failed("listing", &e))?);
            }
            let is_known = taken.as_ref().is_some_and(|taken| taken.contains(&address.addr()));
            if !is_known && take(address.addr())? {
                return Ok((address, gateway));
            }
        }
        Err(CniError::new(Code::Full, format!("no address is left in {}", set.shown())))
    }

    fn last(&self, set: usize) -> Option<IpAddr> {
        read_small(&self.dir.join(format!("{LAST}{set}"))).ok()?.trim().parse().ok()
    }

    fn names(&self) -> io::Result<Vec<IpAddr>> {
        let entries = fs::read_dir(&self.dir)?;
        // Whatever is no address is not ours.
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    fn taken(&self) -> io::Result<HashSet<IpAddr>> {
        Ok(self.names()?.into_iter().collect())
    }

    fn index(&self, of: &AttachmentId) -> PathBuf {
        self.dir.join(INDEX).join(format!("{}:{}", of.container, of.interface))
    }

    /// What the index says, where the files say so too.
    fn indexed(&self, of: &AttachmentId) -> Vec<IpAddr> {
        let text = read_small(&self.index(of)).unwrap_or_default();
        let ips = text.lines().filter_map(|line| line.parse().ok());
        ips.filter(|ip: &IpAddr| self.is_of(*ip, of)).collect()
    }

    fn is_of(&self, ip: IpAddr, of: &AttachmentId) -> bool {
        read_small(&self.dir.join(ip.to_string())).is_ok_and(|text| is_owner(&text, of))
    }

    fn has_one(&self, of: &AttachmentId, config: &HostLocal) -> Vec<IpAddr> {
        let mut ips = self.indexed(of);
        ips.retain(|ip| config.sets.iter().any(|set| set.range_of(*ip).is_some()));
        ips
    }

    /// Everything that an attachment has.
    fn held(&self, of: &AttachmentId) -> Vec<IpAddr> {
        let indexed = self.indexed(of);
        let names = self.names().unwrap_or_default();
        if !indexed.is_empty() && names.len() > FEW {
            return indexed;
        }
        names.into_iter().filter(|ip| self.is_of(*ip, of)).collect()
    }

    fn release(&self, of: &AttachmentId) -> io::Result<()> {
        for ip in self.held(of) {
            remove(&self.dir.join(ip.to_string()))?;
        }
        remove(&self.index(of))
    }

    fn free(&self, ips: &[IpAddr]) {
        for ip in ips {
            let _ = fs::remove_file(self.dir.join(ip.to_string()));
        }
        let _ = fs::remove_file(self.dir.join(ASIDE));
    }

    /// Frees what is nobody's any more.
    fn keep(&self, valid: &HashSet<AttachmentId>) -> io::Result<()> {
        for ip in self.names()? {
            let path = self.dir.join(ip.to_string());
            let text = read_small(&path)?;
            if !valid.iter().any(|of| is_owner(&text, of)) {
                remove(&path)?;
            }
        }
        remove(&self.dir.join(ASIDE))?;
        let entries = match fs::read_dir(self.dir.join(INDEX)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let is_valid =
                name.to_str().and_then(|name| name.split_once(':')).is_some_and(|(container, interface)| {
                    valid.contains(&AttachmentId { container: container.into(), interface: interface.into() })
                });
            if !is_valid {
                remove(&entry.path())?;
            }
        }
        Ok(())
    }
}

fn owner(of: &AttachmentId) -> String {
    format!("{}\r\n{}", of.container, of.interface)
}

/// Long ago upstream's plugin wrote the container alone.
fn is_owner(text: &str, of: &AttachmentId) -> bool {
    let text = text.trim();
    text == owner(of) || text == of.container
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(FILE_MAX).read_to_string(&mut text)?;
    Ok(text)
}

fn create(path: &Path, text: &str) -> io::Result<()> {
    File::create_new(path)?.write_all(text.as_bytes())
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}
