//! What CNI plugins cost: ADD and DEL of bridge, host-local, portmap and loopback, by upstream's programs, by ours, and in
//! process, in turns. Started by `cargo xtask bench cni`.
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use fixture::{Netns, Tools};
use serde_json::{Value, json};

type Outcome<T> = Result<T, String>;

/// What is asked of ours beside upstream's: a fifth as programs, a fifteenth in process, a twentieth of the processor time.
const GOALS: [(&str, f64); 3] =
    [("wall, as programs", 5.0), ("wall, in process", 15.0), ("processor, in process", 20.0)];
/// A hundred deletions at once.
const TOGETHER: Duration = Duration::from_millis(300);

/// One side: how a plugin is called.
enum Side {
    Programs { dir: PathBuf, search: String },
    InProcess,
}

#[derive(Default)]
struct Figures {
    add: Vec<Duration>,
    del: Vec<Duration>,
    processor: Duration,
}

fn main() -> ExitCode {
    let is_quick = std::env::args().any(|arg| arg == "--quick");
    match run(is_quick) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(is_quick: bool) -> Outcome<bool> {
    let (rounds, crowd, many) = if is_quick { (15, 20, 100) } else { (60, 100, 1000) };
    let tools = Tools::from_env()?;
    let bin = Tools::nft_from_env().and_then(|nft| Some(nft.parent()?.display().to_string()));
    let search = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", bin.unwrap_or_default());
    let links = links()?;
    let sides = [
        ("upstream's programs", Side::Programs { dir: tools.cni_bin(), search: search.clone() }),
        ("our programs", Side::Programs { dir: links.path().to_owned(), search }),
        ("in process", Side::InProcess),
    ];
    let mut figures = [Figures::default(), Figures::default(), Figures::default()];
    let machines = sides.each_ref().map(|_| Machine::new());
    let machines = machines.into_iter().collect::<Outcome<Vec<_>>>()?;
    for round in 0..rounds + 2 {
        for ((side, machine), figures) in sides.iter().zip(&machines).zip(&mut figures) {
            let one = machine.round(&side.1, round)?;
            // The first ones make the bridge and read the programs from the disk.
            if round >= 2 {
                figures.add.push(one.0);
                figures.del.push(one.1);
                figures.processor += one.2;
            }
        }
    }
    println!("{:<22}{:>26}{:>26}{:>14}", "ms", "ADD min / p25 / p50", "DEL min / p25 / p50", "processor");
    for ((name, _), figures) in sides.iter().zip(&figures) {
        let processor = ms(figures.processor) / f64::from(rounds);
        println!("{name:<22}{:>26}{:>26}{processor:>14.2}", shown(&figures.add), shown(&figures.del));
    }
    let both = |at: usize| median(&figures[at].add) + median(&figures[at].del);
    let add = |at: usize| median(&figures[at].add);
    let ratios = [
        both(0) / both(1),
        add(0) / add(2),
        figures[0].processor.as_secs_f64() / figures[2].processor.as_secs_f64().max(1e-3),
    ];
    let mut is_good = true;
    for ((what, goal), ratio) in GOALS.iter().zip(ratios) {
        println!("upstream's : ours, {what}: {ratio:.1} (goal {goal})");
        is_good &= ratio >= *goal;
    }
    println!(
        "upstream's : ours, DEL alone, in process: {:.1}",
        median(&figures[0].del) / median(&figures[2].del)
    );
    let together = machines[2].crowd(crowd)?;
    println!("{crowd} DELs at once, in process: {} ms (goal {})", together.as_millis(), TOGETHER.as_millis());
    is_good &= is_quick || together <= TOGETHER;
    let left = machines[2].loop_of(many)?;
    println!(
        "{many} ADD and DEL in a loop leave {left} devices, addresses, routes, elements and files more than before"
    );
    Ok(is_good && left == 0)
}

/// A directory with a link for each plugin to the program that is measured.
fn links() -> Outcome<tempfile_dir::Dir> {
    let program = std::env::var("LONGSHORE_BINARY").map_err(|_| "LONGSHORE_BINARY is not set")?;
    let dir = tempfile_dir::Dir::new()?;
    for name in cni::names() {
        std::os::unix::fs::symlink(&program, dir.path().join(name)).map_err(|e| e.to_string())?;
    }
    Ok(dir)
}

/// Directories that go with us.
mod tempfile_dir {
    use std::path::{Path, PathBuf};

    pub(crate) struct Dir(PathBuf);

    impl Dir {
        pub(crate) fn new() -> Result<Self, String> {
            let nanos = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            let path =
                std::env::temp_dir().join(format!("bench-cni-{:x}", nanos.unwrap_or_default().as_nanos()));
            std::fs::create_dir(&path).map_err(|e| e.to_string())?;
            Ok(Self(path))
        }

        pub(crate) fn path(&self) -> &Path {
            &self.0
        }
    }

    impl Drop for Dir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

struct Machine {
    ns: Netns,
    data: tempfile_dir::Dir,
}

// === impl Machine ===

impl Machine {
    fn new() -> Outcome<Self> {
        Ok(Self { ns: Netns::new().map_err(|e| e.to_string())?, data: tempfile_dir::Dir::new()? })
    }

    fn configs(&self) -> [Value; 3] {
        let ipam = json!({"type": "host-local", "dataDir": self.data.path(), "ranges": [[{"subnet": "10.22.0.0/16"}]],
            "routes": [{"dst": "0.0.0.0/0"}]});
        [
            json!({"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}),
            json!({"cniVersion": "1.0.0", "name": "pods", "type": "bridge", "isGateway": true, "ipMasq": true,
                "ipMasqBackend": "nftables", "hairpinMode": true, "ipam": ipam}),
            json!({"cniVersion": "1.0.0", "name": "pods", "type": "portmap", "backend": "nftables",
                "runtimeConfig": {"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]}}),
        ]
    }

    /// One container comes and goes: how long both took, and the processor time of both.
    fn round(&self, side: &Side, at: u32) -> Outcome<(Duration, Duration, Duration)> {
        let container = Netns::new().map_err(|e| e.to_string())?;
        let id = format!("c{at}");
        self.ns.within(|| {
            let configs = self.configs();
            let (before, began) = (processor(), Instant::now());
            let result = add(side, &configs, &id, &container)?;
            let added = began.elapsed();
            let began = Instant::now();
            del(side, &configs, &id, &container, &result)?;
            Ok((added, began.elapsed(), processor().saturating_sub(before)))
        })
    }

    /// Many come, and go at the same moment.
    fn crowd(&self, many: usize) -> Outcome<Duration> {
        let containers: Vec<Netns> =
            (0..many).map(|_| Netns::new().map_err(|e| e.to_string())).collect::<Outcome<_>>()?;
        let mut configs = self.configs().to_vec();
        configs.pop();
        let side = Side::InProcess;
        self.ns.within(|| {
            let results =
                containers.iter().enumerate().map(|(at, of)| add(&side, &configs, &format!("x{at}"), of));
            let results = results.collect::<Outcome<Vec<Value>>>()?;
            let began = Instant::now();
            let gone: Vec<Outcome<()>> = std::thread::scope(|scope| {
                let threads: Vec<_> = containers
                    .iter()
                    .zip(&results)
                    .enumerate()
                    .map(|(at, (of, result))| {
                        let (side, configs) = (&side, &configs);
                        scope.spawn(move || del(side, configs, &format!("x{at}"), of, result))
                    })
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("it panicked".into()))).collect()
            });
            gone.into_iter().collect::<Outcome<Vec<()>>>()?;
            Ok(began.elapsed())
        })
    }

    fn loop_of(&self, many: u32) -> Outcome<usize> {
        let before = self.inventory()?;
        let container = Netns::new().map_err(|e| e.to_string())?;
        let configs = self.configs();
        self.ns.within(|| {
            for at in 0..many {
                let id = format!("l{at}");
                let result = add(&Side::InProcess, &configs, &id, &container)?;
                del(&Side::InProcess, &configs, &id, &container, &result)?;
            }
            Ok::<(), String>(())
        })?;
        Ok(self.inventory()?.saturating_sub(before))
    }

    fn inventory(&self) -> Outcome<usize> {
        let count = |program: &str, args: &[&str]| {
            let out = self.ns.command(program).args(args).output().map_err(|e| e.to_string())?;
            Ok::<usize, String>(String::from_utf8_lossy(&out.stdout).lines().count())
        };
        let ip = |args: &[&str]| count("ip", args);
        let files = std::fs::read_dir(self.data.path().join("pods")).map_or(0, Iterator::count);
        let nft = Tools::nft_from_env().ok_or("no nft")?;
        let elements = count(&nft.display().to_string(), &["list", "ruleset"])?;
        Ok(ip(&["-o", "addr"])?
            + ip(&["-o", "link"])?
            + ip(&["route"])?
            + ip(&["-6", "route"])?
            + files
            + elements)
    }
}

fn add(side: &Side, configs: &[Value], id: &str, container: &Netns) -> Outcome<Value> {
    let mut before = Value::Null;
    for config in configs {
        let mut config = config.clone();
        // Loopback is a network of its own.
        if config["name"] == "pods" && !before.is_null() {
            config["prevResult"] = before.clone();
        }
        let result = call(side, "ADD", &config, id, container)?;
        if config["name"] == "pods" {
            before = result;
        }
    }
    Ok(before)
}

fn del(side: &Side, configs: &[Value], id: &str, container: &Netns, before: &Value) -> Outcome<()> {
    for config in configs.iter().rev() {
        let mut config = config.clone();
        if config["name"] == "pods" {
            config["prevResult"] = before.clone();
        }
        call(side, "DEL", &config, id, container)?;
    }
    Ok(())
}

fn call(side: &Side, verb: &str, config: &Value, id: &str, container: &Netns) -> Outcome<Value> {
    let plugin = config["type"].as_str().unwrap_or_default();
    let mut environment = cni::Environment {
        command: verb.into(),
        container: id.into(),
        namespace: format!("/proc/{}/ns/net", container.pid()),
        interface: if plugin == "loopback" { "lo" } else { "eth0" }.into(),
        ..cni::Environment::default()
    };
    let input = config.to_string();
    match side {
        Side::InProcess => {
            let value = cni::call(plugin, &environment, input.as_bytes());
            value.map(Option::unwrap_or_default).map_err(|e| format!("{plugin} {verb}: {e}"))
        }
        Side::Programs { dir, search } => {
            environment.path = dir.display().to_string();
            program(&dir.join(plugin), &environment, search, &input)
        }
    }
}

fn program(path: &Path, environment: &cni::Environment, search: &str, input: &str) -> Outcome<Value> {
    let mut child = Command::new(path)
        .env("CNI_COMMAND", &environment.command)
        .env("CNI_CONTAINERID", &environment.container)
        .env("CNI_NETNS", &environment.namespace)
        .env("CNI_IFNAME", &environment.interface)
        .env("CNI_PATH", &environment.path)
        .env("PATH", search)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|e| format!("running {}: {e}", path.display()))?;
    if let Some(mut stdin) = child.stdin.take() {
        stdin.write_all(input.as_bytes()).map_err(|e| e.to_string())?;
    }
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout);
    match out.status.success() {
        true => Ok(serde_json::from_str(&text).unwrap_or_default()),
        false => Err(format!("{} {}: {text}", path.display(), environment.command)),
    }
}

/// Of this process and of those it waited for.
fn processor() -> Duration {
    const TICK: Duration = Duration::from_millis(10);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks =
        fields.get(11..15).unwrap_or_default().iter().filter_map(|field| field.parse::<u32>().ok()).sum();
    TICK * ticks
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn at(all: &[Duration], part: f64) -> f64 {
    let mut sorted = all.to_vec();
    sorted.sort();
    let place = (sorted.len() as f64 * part) as usize;
    sorted.get(place).copied().map_or(f64::NAN, ms)
}

fn median(all: &[Duration]) -> f64 {
    at(all, 0.5)
}

fn shown(all: &[Duration]) -> String {
    format!("{:.2} / {:.2} / {:.2}", at(all, 0.0), at(all, 0.25), median(all))
}
