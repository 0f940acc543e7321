//! systemd, where it owns the tree of cgroups: slices are its units, and it is asked for them.
//!
//! Every act is a conversation of its own. systemd and its bus may be restarted between any two, nobody has to listen to
//! what systemd tells while there is nothing to do, and one that hangs costs an act its time and nothing else.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use kubelet_core::cgroup::unit::{self, Dialect, Property};
use kubelet_core::cgroup::{Limits, Name};
use systemd::bus::wire::{Call, Value};
use systemd::bus::{Bus, BusError, Places, Rule};
use tokio::sync::{OnceCell, Semaphore};

const SYSTEMD: &str = "org.freedesktop.systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const OBJECT: &str = "/org/freedesktop/systemd1";
const EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const UNKNOWN: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// Of one that does not say.
const OLDEST: u32 = 0;

/// For one act, as upstream waits.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Before an act is tried again whose connection broke: twice as long each time, and seven times at most, as upstream.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSES: u32 = 7;
/// What a bus says when systemd is not on it just now.
const AWAY: [&str; 3] = ["NoReply", "ServiceUnknown", "NameHasNoOwner"];
/// Acts at once: systemd does one thing after another.
const ACTS: usize = 8;

/// systemd's units, as far as they are slices.
#[derive(Debug)]
pub(crate) struct Units {
    places: Places,
    /// Cgroups of version 2 only.
    unified: bool,
    limit: Duration,
    acts: Semaphore,
    version: OnceCell<u32>,
}

/// Why systemd did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnitError {
    #[error(
        "cgroupDriver systemd: systemd cannot be reached to {act} {unit}: at the system bus {}: {bus_cause}; at {}: {own_cause}",
        .bus.display(), .own.display()
    )]
    Unreachable {
        act: &'static str,
        unit: String,
        bus: PathBuf,
        bus_cause: io::Error,
        own: PathBuf,
        own_cause: io::Error,
    },
    #[error("cgroupDriver systemd: {act} {unit}: {cause}")]
    Refused { act: &'static str, unit: String, cause: io::Error },
    #[error("cgroupDriver systemd: {act} {unit}: systemd's job ended as {result:?}")]
    Ended { act: &'static str, unit: String, result: String },
    #[error("cgroupDriver systemd: {act} {unit}: systemd did not answer within {limit:?}")]
    Late { act: &'static str, unit: String, limit: Duration },
}

/// One act, and the connection it is done over.
struct Conversation<'a> {
    act: &'static str,
    unit: &'a str,
    bus: Bus,
}

// === impl UnitError ===

impl UnitError {
    /// Nothing was said about the act itself, and systemd may be back in a moment. It is not where it has no socket.
    fn is_of_the_connection(&self) -> bool {
        use io::ErrorKind::{BrokenPipe, ConnectionReset, NotFound, UnexpectedEof};
        match self {
            UnitError::Unreachable { bus_cause, own_cause, .. } => {
                bus_cause.kind() != NotFound || own_cause.kind() != NotFound
            }
            UnitError::Refused { cause, .. } => {
                let name =
                    BusError::of(cause).and_then(|r| r.name.strip_prefix("org.freedesktop.DBus.Error."));
                name.is_some_and(|name| AWAY.contains(&name))
                    || matches!(cause.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
            }
            UnitError::Ended { .. } | UnitError::Late { .. } => false,
        }
    }
}

// === impl Units ===

impl Units {
    pub(crate) fn new(places: Places, unified: bool) -> Self {
        let (acts, version) = (Semaphore::new(ACTS), OnceCell::new());
        Self { places, unified, limit: TIMEOUT, acts, version }
    }

    #[cfg(test)]
    pub(crate) fn with_limit(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// Has the slice started, with these limits. One that is there already gets the limits and stays.
    pub(crate) async fn make(&self, name: &Name, limits: &Limits) -> Result<(), UnitError> {
        let unit = name.unit();
        let work = || async {
            let mut talk = self.converse("make", &unit).await?;
            talk.listen().await?;
            let dialect = self.dialect(&mut talk).await;
            let bounds = unit::bounds(limits, dialect);
            let founding = unit::founding(name, dialect);
            let all: Vec<Property> = founding.into_iter().chain(bounds.iter().cloned()).collect();
            let job = match talk.start_transient(&all).await {
                Err(UnitError::Refused { cause, .. }) if is(&cause, EXISTS) => {
                    // It runs already, or was left over by one that ran: either way it is started from now on.
                    talk.set(&bounds).await?;
                    talk.job("StartUnit").await?
                }
                started => started?,
            };
            talk.finished(&job).await
        };
        self.within("make", &unit, work).await
    }

    /// Gives a slice other limits.
    pub(crate) async fn change(&self, name: &Name, limits: &Limits) -> Result<(), UnitError> {
        let unit = name.unit();
        let work = || async {
            let mut talk = self.converse("change", &unit).await?;
            let dialect = self.dialect(&mut talk).await;
            talk.set(&unit::bounds(limits, dialect)).await
        };
        self.within("change", &unit, work).await
    }

    /// Has the slice stopped, and forgotten if it had failed. One that is unknown is what was wanted.
    pub(crate) async fn stop(&self, name: &Name) -> Result<(), UnitError> {
        let unit = name.unit();
        let work = || async {
            let mut talk = self.converse("stop", &unit).await?;
            talk.listen().await?;
            match talk.job("StopUnit").await {
                Ok(job) => talk.finished(&job).await?,
                Err(UnitError::Refused { cause, .. }) if is(&cause, UNKNOWN) => return Ok(()),
                Err(error) => return Err(error),
            }
            // One that had not failed is forgotten by itself, and may be by now.
            let _ = talk.call("ResetFailedUnit", &[Value::Text(&unit)]).await;
            Ok(())
        };
        self.within("stop", &unit, work).await
    }

    /// In turn, in time, and again if the connection broke: systemd and its bus are back soon when they are restarted.
    async fn within<F: Future<Output = Result<(), UnitError>>>(
        &self,
        act: &'static str,
        unit: &str,
        work: impl Fn() -> F,
    ) -> Result<(), UnitError> {
        let turn = async {
            // Never closed.
            let _turn = self.acts.acquire().await;
            for tries in 0..PAUSES {
                match work().await {
                    Err(error) if error.is_of_the_connection() => {
                        tracing::info!(%error, "asking systemd again");
                        tokio::time::sleep(PAUSE * 2_u32.pow(tries)).await;
                    }
                    done => return done,
                }
            }
            work().await
        };
        let late = |_| UnitError::Late { act, unit: unit.to_owned(), limit: self.limit };
        tokio::time::timeout(self.limit, Box::pin(turn)).await.map_err(late)?
    }

    /// Over the system bus, as upstream; over systemd's own socket where there is none.
    async fn converse<'a>(&self, act: &'static str, unit: &'a str) -> Result<Conversation<'a>, UnitError> {
        let bus_cause = match Bus::open(&self.places.bus).await {
            Ok(bus) => return Ok(Conversation { act, unit, bus }),
            Err(cause) => cause,
        };
        match Bus::direct(&self.places.systemd).await {
            Ok(bus) => Ok(Conversation { act, unit, bus }),
            Err(own_cause) => Err(UnitError::Unreachable {
                act,
                unit: unit.to_owned(),
                bus: self.places.bus.clone(),
                bus_cause,
                own: self.places.systemd.clone(),
                own_cause,
            }),
        }
    }

    async fn dialect(&self, talk: &mut Conversation<'_>) -> Dialect {
        let version = self.version.get_or_try_init(|| talk.version()).await;
        let version = version.copied().unwrap_or_else(|error: UnitError| {
            tracing::warn!(%error, "systemd does not say which version it is");
            OLDEST
        });
        Dialect { version, unified: self.unified }
    }
}

// === impl Conversation ===

impl Conversation<'_> {
    /// Asks for the ends of jobs of this unit.
    async fn listen(&mut self) -> Result<(), UnitError> {
        let rule =
            Rule { interface: MANAGER, member: "JobRemoved", path: OBJECT, argument: Some((2, self.unit)) };
        let listened = self.bus.listen(&rule).await;
        listened.map_err(|cause| self.refused(cause))
    }

    async fn start_transient(&mut self, properties: &[Property]) -> Result<String, UnitError> {
        let pairs: Vec<(&str, Value<'_>)> = properties.iter().map(pair).collect();
        let arguments =
            [Value::Text(self.unit), Value::Text("replace"), Value::Named(&pairs), Value::NoUnits];
        let answer = self.call("StartTransientUnit", &arguments).await?;
        answer.object().ok_or_else(|| self.nonsense())
    }

    /// Until the unit is unloaded: what outlives a start of the machine is no business of Pods.
    async fn set(&mut self, properties: &[Property]) -> Result<(), UnitError> {
        if properties.is_empty() {
            return Ok(());
        }
        let pairs: Vec<(&str, Value<'_>)> = properties.iter().map(pair).collect();
        let arguments = [Value::Text(self.unit), Value::Truth(true), Value::Named(&pairs)];
        self.call("SetUnitProperties", &arguments).await.map(drop)
    }

    /// Begins a job, and says which.
    async fn job(&mut self, member: &str) -> Result<String, UnitError> {
        let arguments = [Value::Text(self.unit), Value::Text("replace")];
        let answer = self.call(member, &arguments).await?;
        answer.object().ok_or_else(|| self.nonsense())
    }

    /// Waits for the end of a job.
    async fn finished(&mut self, job: &str) -> Result<(), UnitError> {
        loop {
            let signal = self.bus.signal().await.map_err(|cause| self.refused(cause))?;
            match signal.job() {
                Some((ended, result)) if ended == job => {
                    return match result == "done" {
                        true => Ok(()),
                        false => Err(UnitError::Ended { act: self.act, unit: self.unit.to_owned(), result }),
                    };
                }
                _ => {}
            }
        }
    }

    async fn version(&mut self) -> Result<u32, UnitError> {
        let call = Call {
            destination: SYSTEMD,
            path: OBJECT,
            interface: "org.freedesktop.DBus.Properties",
            member: "Get",
            arguments: &[Value::Text(MANAGER), Value::Text("Version")],
        };
        let (answer, _) = self.bus.call(&call).await.map_err(|cause| self.refused(cause))?;
        answer.variant_text().and_then(|text| unit::version(&text)).ok_or_else(|| self.nonsense())
    }

    async fn call(
        &mut self,
        member: &str,
        arguments: &[Value<'_>],
    ) -> Result<systemd::bus::wire::Message, UnitError> {
        let call = Call { destination: SYSTEMD, path: OBJECT, interface: MANAGER, member, arguments };
        let answered = self.bus.call(&call).await;
        answered.map(|(message, _)| message).map_err(|cause| self.refused(cause))
    }

    fn nonsense(&self) -> UnitError {
        self.refused(io::Error::other("systemd's answer is not understood"))
    }

    fn refused(&self, cause: io::Error) -> UnitError {
        UnitError::Refused { act: self.act, unit: self.unit.to_owned(), cause }
    }
}

fn pair(property: &Property) -> (&str, Value<'_>) {
    let value = match &property.value {
        unit::Value::Text(text) => Value::Text(text),
        unit::Value::Texts(texts) => Value::Texts(texts),
        unit::Value::Truth(truth) => Value::Truth(*truth),
        unit::Value::Number(number) => Value::Large(*number),
        unit::Value::Bytes(bytes) => Value::Bytes(bytes),
    };
    (property.name, value)
}

fn is(cause: &io::Error, name: &str) -> bool {
    BusError::of(cause).is_some_and(|refusal| refusal.name == name)
}

#[cfg(test)]
mod tests;
