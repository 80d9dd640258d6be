//! Workers that a Kubernetes API server names: the endpoints of Services, or pods.
//!
//! A list says what there is, and a watch from the list's version on says what changes. A watch ends all the time, by the
//! server's will or the network's, and goes on from the last version that it has told; bookmarks keep that version new
//! while nothing changes. When the server no longer knows the version (410 Gone), everything is listed again. Between two
//! failures there are growing pauses ([`super::pause`]), and whatever fails, what was known last stays.
//!
//! A connection can be dead without anybody having said so. The server is asked to end each watch within a minute, and one
//! that is silent for longer is given up: a change is never missed for longer than that.
//!
//! This is written here and not taken from `kube`: with what it needs that crate is sixty others, among them one of 110,000
//! lines and a parser of YAML, to read three files and two kinds of object; its answers are without a bound, and its
//! watch keeps bookmarks for itself and does not say which verb was refused.

mod client;
mod endpoints;
mod objects;
mod pods;

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::time::Duration;

use config::{Template, Watched};
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout, timeout_at};
use tracing::{debug, info};

use self::client::{Lines, Refusal, Server, Status};
use self::objects::{Endpoint, Event, List, Meta, Object, Rules, check_version, gather};
pub(crate) use self::objects::{address, in_words};
use crate::LOG;
use crate::pause::{self, Pause};
use crate::source::Source;
use crate::state::DiscoveryState;

/// Objects of one answer to a list.
const PAGE: &str = "250";
/// Most objects that are kept.
const MOST_OBJECTS: usize = 10_000;
/// Most endpoints that are kept of all objects.
const MOST_ENDPOINTS: usize = 20_000;
/// Most answers to one list, whatever is in them.
const MOST_PAGES: usize = 1_000;
/// For all answers to one list.
const LIST_PATIENCE: Duration = Duration::from_secs(60);
/// Seconds that a watch is asked to last at most.
const WATCH_S: u64 = 55;
/// How much longer than asked for a watch may last.
const PATIENCE: Duration = Duration::from_secs(15);
/// Between the beginnings of two watches, at least.
const BREATH: Duration = Duration::from_millis(250);
/// Between two publications of what a watch has told, at least.
const PUBLISH: Duration = Duration::from_millis(50);

/// Keeps what the server names in the state. Does not end.
pub(crate) async fn run(settings: &config::Kubernetes, template: &Template, state: &DiscoveryState) {
    match &settings.watched {
        Watched::Services(names) => {
            let selector = format!("kubernetes.io/service-name in ({})", names.join(","));
            follow::<endpoints::Slice>(state, settings, template, selector).await;
        }
        Watched::Pods(selector) => {
            let selector = selector.clone();
            follow::<pods::Pod>(state, settings, template, selector).await;
        }
    }
}

async fn follow<T: Object>(
    state: &DiscoveryState,
    settings: &config::Kubernetes,
    template: &Template,
    selector: String,
) {
    let mut following = Following::<T> {
        state,
        settings,
        rules: Rules::new(settings, template),
        selector,
        server: None,
        objects: BTreeMap::new(),
        endpoints: 0,
        version: None,
        watched: None,
        published: Instant::now(),
        is_new: false,
        pause: Pause::new(pause::seed()),
        kind: PhantomData,
    };
    loop {
        if let Err(failure) = following.step().await {
            following.failed(failure).await;
        }
    }
}

/// What is known by now.
struct Following<'a, T> {
    state: &'a DiscoveryState,
    settings: &'a config::Kubernetes,
    rules: Rules<'a>,
    selector: String,
    /// `None`: what it takes to reach it has to be read again.
    server: Option<Server>,
    /// What each object names, by the object's name.
    objects: BTreeMap<String, Vec<Endpoint>>,
    /// How many endpoints these are.
    endpoints: usize,
    /// What the next watch begins at; `None`: everything has to be listed.
    version: Option<String>,
    /// When the last watch began.
    watched: Option<Instant>,
    /// When something was published last.
    published: Instant,
    /// Whether something has changed since.
    is_new: bool,
    pause: Pause,
    kind: PhantomData<T>,
}

/// Why a step failed.
enum Failure {
    /// The server no longer knows the version.
    Gone,
    /// It refused this.
    Refused(&'static str, Refusal),
    /// Something else.
    Because(String),
}

const LIST: &str = "list";
const WATCH: &str = "watch";

impl<T: Object> Following<'_, T> {
    /// Lists, or watches until the watch ends.
    async fn step(&mut self) -> Result<(), Failure> {
        let server = match self.server.take() {
            Some(server) => server,
            None => {
                // Reads files.
                let settings = self.settings.clone();
                let made = tokio::task::spawn_blocking(move || Server::new(&settings)).await;
                made.map_err(|error| Failure::Because(error.to_string()))?
                    .map_err(Failure::Because)?
            }
        };
        let done = match self.version.clone() {
            None => (timeout(LIST_PATIENCE, self.list(&server)).await).unwrap_or_else(|_| {
                let what = format!("a list of {} takes longer than {LIST_PATIENCE:?}", T::RESOURCE);
                Err(Failure::Because(what))
            }),
            Some(version) => self.watch(&server, &version).await,
        };
        // What could not be reached may be reached with another certificate.
        if !matches!(done, Err(Failure::Refused(_, Refusal::Failed(_)))) {
            self.server = Some(server);
        }
        done
    }

    async fn list(&mut self, server: &Server) -> Result<(), Failure> {
        let (path, mut next) = (T::path(&server.namespace), String::new());
        let mut objects = BTreeMap::new();
        let mut endpoints = 0;
        let mut version = String::new();
        for page in 0.. {
            let mut ask = vec![("labelSelector", self.selector.as_str()), ("limit", PAGE)];
            if !next.is_empty() {
                ask.push(("continue", &next));
            }
            let text = server
                .get(&path, &ask)
                .await
                .map_err(|error| refused(LIST, error))?;
            let answer: List<'_> = serde_json::from_slice(&text)
                .map_err(|error| Failure::Because(format!("the answer to a list is no list: {error}")))?;
            for object in answer.items {
                let object: T = checked(object)?;
                let named = object.endpoints(&self.rules);
                endpoints += named.len();
                objects.insert(object.name().to_owned(), named);
                if objects.len() > MOST_OBJECTS || endpoints > MOST_ENDPOINTS {
                    return Err(too_many::<T>());
                }
            }
            if page > MOST_PAGES {
                return Err(too_many::<T>());
            }
            version = answer.metadata.resource_version;
            next = answer.metadata.next_page.unwrap_or_default();
            if next.is_empty() {
                break;
            }
        }
        if version.is_empty() {
            return Err(Failure::Because(
                "the answer to a list has no resourceVersion".to_owned(),
            ));
        }
        check_version(&version).map_err(Failure::Because)?;
        debug!(target: LOG, objects = objects.len(), version, "listed");
        self.endpoints = objects.values().map(Vec::len).sum();
        self.objects = objects;
        self.version = Some(version);
        self.publish();
        Ok(())
    }

    /// Takes what changes until the watch ends.
    async fn watch(&mut self, server: &Server, version: &str) -> Result<(), Failure> {
        if let Some(watched) = self.watched {
            tokio::time::sleep_until(watched + BREATH).await;
        }
        self.watched = Some(Instant::now());
        let seconds = WATCH_S.to_string();
        let ask = [
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("labelSelector", &self.selector),
            ("resourceVersion", version),
            ("timeoutSeconds", &seconds),
        ];
        let lines = server.lines(&T::path(&server.namespace), &ask).await;
        let mut lines = lines.map_err(|error| refused(WATCH, error))?;
        self.state.heard(Source::Kubernetes);
        // One that lasts longer than it was asked to is given up: another one goes on where it ended.
        let end = Instant::now() + Duration::from_secs(WATCH_S) + PATIENCE;
        let followed = self.follow_lines(&mut lines, end).await;
        if self.is_new {
            self.publish();
        }
        followed
    }

    /// Takes lines until they end or it is time. What they change is published at once, or [`PUBLISH`] after the last time.
    async fn follow_lines(&mut self, lines: &mut Lines, end: Instant) -> Result<(), Failure> {
        while Instant::now() < end {
            let due = self.published + PUBLISH;
            if self.is_new && due <= Instant::now() {
                self.publish();
            }
            let until = if self.is_new { due.min(end) } else { end };
            let Ok(line) = timeout_at(until, lines.next()).await else {
                continue;
            };
            match line.map_err(|error| refused(WATCH, error))? {
                Some(line) if line.is_empty() => {}
                Some(line) => {
                    self.take(&line)?;
                    self.pause.reset();
                }
                None => {
                    self.pause.reset();
                    break;
                }
            }
            // Lines that are here already are taken without waiting; other tasks of the thread get their turn.
            tokio::task::consume_budget().await;
        }
        Ok(())
    }

    /// Takes one event of a watch.
    fn take(&mut self, line: &[u8]) -> Result<(), Failure> {
        let event: Event<'_> = read(line)?;
        let version = match event.kind {
            "ADDED" | "MODIFIED" => {
                let object: T = checked(event.object)?;
                self.put(&object);
                if self.objects.len() > MOST_OBJECTS || self.endpoints > MOST_ENDPOINTS {
                    // The list says what is wrong, and what was published before stays.
                    self.remove(object.name());
                    self.is_new = false;
                    return Err(Failure::Gone);
                }
                object.version().to_owned()
            }
            "DELETED" => {
                let object: T = checked(event.object)?;
                self.remove(object.name());
                object.version().to_owned()
            }
            "ERROR" => {
                let Status { code, message } = of(event.object)?;
                return Err(refused(WATCH, Refusal::Said { code, message }));
            }
            // A bookmark, or what servers will say one day: it has a version.
            _ => {
                self.state.heard(Source::Kubernetes);
                let meta = of::<Only>(event.object)?.metadata;
                meta.check().map_err(Failure::Because)?;
                meta.resource_version
            }
        };
        if !version.is_empty() {
            self.version = Some(version);
        }
        Ok(())
    }

    fn put(&mut self, object: &T) {
        self.remove(object.name());
        let endpoints = object.endpoints(&self.rules);
        self.endpoints += endpoints.len();
        self.objects.insert(object.name().to_owned(), endpoints);
    }

    fn remove(&mut self, name: &str) {
        let before = self.objects.remove(name);
        self.endpoints -= before.map_or(0, |before| before.len());
        self.is_new = true;
    }

    fn publish(&mut self) {
        (self.published, self.is_new) = (Instant::now(), false);
        let found = gather(self.objects.values().flatten());
        self.state.found(Source::Kubernetes, found);
    }

    async fn failed(&mut self, failure: Failure) {
        let why = match failure {
            Failure::Gone => {
                info!(target: LOG, "the API server no longer knows what was seen last: everything is listed again");
                self.version = None;
                None
            }
            Failure::Refused(verb, refusal) => {
                if verb == WATCH && matches!(refusal, Refusal::Said { code: 400 | 422, .. }) {
                    // It may be the version that the server does not take.
                    self.version = None;
                }
                let namespace = self.server.as_ref().map_or("", |server| &server.namespace);
                Some(explain(verb, T::RESOURCE, namespace, &refusal))
            }
            Failure::Because(why) => Some(why),
        };
        if let Some(why) = why {
            self.state.failed(Source::Kubernetes, &why);
        }
        tokio::time::sleep(self.pause.next()).await;
    }
}

/// An object of which nothing but its version matters.
#[derive(serde::Deserialize)]
struct Only {
    metadata: Meta,
}

fn read<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(line)
        .map_err(|error| Failure::Because(format!("an event of the watch makes no sense: {error}")))
}

/// An object of which no more is kept than an API server may say.
fn checked<T: Object>(object: &RawValue) -> Result<T, Failure> {
    let object: T = of(object)?;
    object.meta().check().map_err(Failure::Because)?;
    Ok(object)
}

fn too_many<T: Object>() -> Failure {
    Failure::Because(format!(
        "there are more than {MOST_OBJECTS} {} or {MOST_ENDPOINTS} endpoints: narrow what is watched",
        T::RESOURCE
    ))
}

fn of<T: serde::de::DeserializeOwned>(object: &RawValue) -> Result<T, Failure> {
    read(object.get().as_bytes())
}

fn refused(verb: &'static str, refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Said { code: 410, .. } => Failure::Gone,
        refusal => Failure::Refused(verb, refusal),
    }
}

/// What is wrong, and what to do about it.
fn explain(verb: &str, resource: &str, namespace: &str, refusal: &Refusal) -> String {
    let (code, message) = match refusal {
        Refusal::Said { code, message } => (*code, message),
        Refusal::Failed(why) => {
            return format!("the API server cannot be reached to {verb} {resource}: {why}");
        }
    };
    let said = match message.as_str() {
        "" => String::new(),
        message => format!("; the API server said: {message}"),
    };
    match code {
        403 => format!(
            "the router may not {verb} {resource} in namespace {namespace}: its service account needs a Role there that \
             allows get, list and watch of {resource} (docs/discovery.md){said}"
        ),
        401 => format!("the API server does not take the router's token{said}"),
        code => format!("the API server answered {code} to a {verb} of {resource}{said}"),
    }
}
