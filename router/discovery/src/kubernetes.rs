//! Workers that a Kubernetes API server names: the endpoints of Services, or pods.
//!
//! kube's watcher lists what there is and watches what changes: it continues where a watch ended, by the last event or
//! bookmark, and lists again after 410 Gone. This file applies its events to the set of objects, within bounds, and decides
//! what a failure means. Between two failures there are growing pauses ([`crate::pause`]). Whatever fails, the last set stays
//! in force.
//!
//! | file | what it does |
//! |---|---|
//! | [`transport`] | the HTTP service beneath kube's client: answers bounded in size and time |
//! | [`lines`] | the body of a watch, line by line |
//! | [`server`] | url, certificates, token and namespace |
//! | [`failure`] | what a failure means, and what to do about it |
//! | [`objects`] | from objects to workers; [`endpoints`] and [`pods`] are the two kinds of object |
//!
//! A connection can be dead without a sign. The server is asked to end each watch within a minute, and a silent one is given
//! up five seconds later, so that no change is missed for longer.

mod endpoints;
mod failure;
mod lines;
mod objects;
mod pods;
mod server;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use config::{Template, Watched};
use futures_util::stream::{BoxStream, StreamExt as _};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info};

use self::failure::Failure;
use self::objects::{Endpoint, Object, Rules, check, gather};
pub(crate) use self::objects::{address, in_words};
use self::transport::Transport;
use crate::LOG;
use crate::pause::{self, Pause};
use crate::source::Source;
use crate::state::DiscoveryState;

/// The number of objects of one page of a list.
const PAGE: u32 = 40;
/// The maximum number of objects.
const MAX_OBJECTS: usize = 10_000;
/// The maximum number of endpoints of all objects.
const MAX_ENDPOINTS: usize = 20_000;
/// The time for all pages of a list.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// The time after which the server is asked to end a watch, in seconds.
const WATCH_S: u32 = 55;
/// The shortest time between two publications of what a watch reported.
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);
/// What is reported of a list without an end.
const TOO_MANY: &str = "a list has more than 1000 pages: narrow the selection";

/// Keeps what the server names in the state. Does not end.
pub(crate) async fn run(settings: &config::Kubernetes, template: &Template, state: &Arc<DiscoveryState>) {
    match &settings.watched {
        Watched::Services(names) => {
            let selector = format!("kubernetes.io/service-name in ({})", names.join(","));
            Follower::<EndpointSlice>::new(state, settings, template, selector)
                .run()
                .await;
        }
        Watched::Pods(selector) => {
            Follower::<Pod>::new(state, settings, template, selector.clone())
                .run()
                .await;
        }
    }
}

type Events<T> = BoxStream<'static, Result<Event<T>, watcher::Error>>;

/// What each object names, by the object's name.
#[derive(Default)]
struct Objects {
    by_name: BTreeMap<String, Vec<Endpoint>>,
    /// The number of endpoints of all objects.
    endpoints: usize,
}

impl Objects {
    fn put(&mut self, name: &str, endpoints: Vec<Endpoint>) {
        self.remove(name);
        self.endpoints += endpoints.len();
        self.by_name.insert(name.to_owned(), endpoints);
    }

    fn remove(&mut self, name: &str) {
        let before = self.by_name.remove(name);
        self.endpoints -= before.map_or(0, |before| before.len());
    }

    fn are_too_many(&self) -> bool {
        self.by_name.len() > MAX_OBJECTS || self.endpoints > MAX_ENDPOINTS
    }
}

/// Applies the events of a watcher to the state.
struct Follower<'a, T> {
    state: &'a DiscoveryState,
    rules: Rules<'a>,
    selector: String,
    transport: Transport,
    namespace: String,
    objects: Objects,
    /// The objects of the list that is being read, and when it has to be complete.
    listed: Objects,
    list_deadline: Option<Instant>,
    published: Instant,
    /// Whether something has changed since the last publication.
    is_new: bool,
    pause: Pause,
    kind: std::marker::PhantomData<T>,
}

impl<'a, T: Object> Follower<'a, T> {
    fn new(
        state: &'a Arc<DiscoveryState>,
        settings: &'a config::Kubernetes,
        template: &'a Template,
        selector: String,
    ) -> Self {
        Self {
            state,
            rules: Rules::new(settings, template),
            selector,
            transport: Transport::new(settings, state),
            namespace: String::new(),
            objects: Objects::default(),
            listed: Objects::default(),
            list_deadline: None,
            published: Instant::now(),
            is_new: false,
            pause: Pause::new(pause::seed()),
            kind: std::marker::PhantomData,
        }
    }

    async fn run(mut self) {
        let mut events: Option<Events<T>> = None;
        loop {
            let outcome = match &mut events {
                Some(events) => self.next(events).await,
                None => self.begin().await.map(|begun| events = Some(begun)),
            };
            if let Err(failure) = outcome {
                if failure.needs_list() {
                    events = None;
                }
                self.failed(&failure).await;
            }
        }
    }

    async fn begin(&mut self) -> Result<Events<T>, Failure> {
        let namespace = self.transport.namespace().await;
        self.namespace = namespace.map_err(Failure::Malformed)?;
        let client = Client::new(self.transport.clone(), &*self.namespace);
        let api = Api::<T>::namespaced(client, &self.namespace);
        let config = watcher::Config::default().labels(&self.selector);
        Ok(watcher(api, config.timeout(WATCH_S).page_size(PAGE)).boxed())
    }

    /// Waits for one event and applies it. Changes are published at once, or [`PUBLISH_INTERVAL`] after the last time.
    async fn next(&mut self, events: &mut Events<T>) -> Result<(), Failure> {
        // Events that are here already are taken without waiting; other tasks of the thread get their turn.
        tokio::task::consume_budget().await;
        let due = self.is_new.then(|| self.published + PUBLISH_INTERVAL);
        if due.is_some_and(|due| due <= Instant::now()) {
            self.publish();
        }
        let event = match due.into_iter().chain(self.list_deadline).min() {
            None => events.next().await,
            Some(until) => match timeout_at(until, events.next()).await {
                Ok(event) => event,
                Err(_)
                    if self
                        .list_deadline
                        .is_some_and(|deadline| deadline <= Instant::now()) =>
                {
                    let what = format!("a list of {} takes longer than {LIST_TIMEOUT:?}", T::RESOURCE);
                    return Err(Failure::Malformed(what));
                }
                Err(_) => return Ok(()),
            },
        };
        match event {
            Some(Ok(event)) => self.apply(&event),
            Some(Err(error)) => Err(Failure::of_watcher(&error)),
            None => Err(Failure::Malformed("the watcher ended".to_owned())),
        }
    }

    fn apply(&mut self, event: &Event<T>) -> Result<(), Failure> {
        match event {
            Event::Init => {
                self.transport.list_begins();
                self.listed = Objects::default();
                self.list_deadline = Some(Instant::now() + LIST_TIMEOUT);
            }
            Event::InitApply(object) => {
                self.listed.put(name(object)?, object.endpoints(&self.rules));
                if self.listed.are_too_many() {
                    return Err(too_many::<T>());
                }
            }
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.list_deadline = None;
                debug!(target: LOG, objects = self.objects.by_name.len(), "listed");
                self.publish();
            }
            Event::Apply(object) => {
                let name = name(object)?;
                self.objects.put(name, object.endpoints(&self.rules));
                if self.objects.are_too_many() {
                    // The list reports what is wrong, and what was published before stays.
                    self.objects.remove(name);
                    self.is_new = false;
                    return Err(Failure::Gone);
                }
                self.changed();
            }
            Event::Delete(object) => {
                self.objects.remove(name(object)?);
                self.changed();
            }
        }
        Ok(())
    }

    fn changed(&mut self) {
        self.is_new = true;
        self.pause.reset();
    }

    fn publish(&mut self) {
        (self.published, self.is_new) = (Instant::now(), false);
        let found = gather(self.objects.by_name.values().flatten());
        self.state.found(Source::Kubernetes, found);
    }

    /// Reports a failure, and waits until the server is asked again.
    async fn failed(&mut self, failure: &Failure) {
        self.list_deadline = None;
        if self.transport.take_watch_ended() {
            self.pause.reset();
        }
        if self.is_new {
            self.publish();
        }
        match failure {
            Failure::Gone => {
                info!(target: LOG, "the watch expired; listing again");
            }
            Failure::Refused(verb, refusal) => {
                let why = failure::explain(verb, T::RESOURCE, &self.namespace, refusal);
                self.state.failed(Source::Kubernetes, &why);
            }
            Failure::Malformed(why) => {
                self.state.failed(Source::Kubernetes, why);
            }
        }
        tokio::time::sleep(self.pause.next()).await;
    }
}

/// The name of an object whose metadata is within bounds.
fn name<T: Object>(object: &T) -> Result<&str, Failure> {
    check(object.meta()).map_err(Failure::Malformed)
}

fn too_many<T: Object>() -> Failure {
    Failure::Malformed(format!(
        "there are more than {MAX_OBJECTS} {} or {MAX_ENDPOINTS} endpoints: narrow the selection",
        T::RESOURCE
    ))
}

/// The number of JSON values in a text, at most.
fn values(text: &[u8]) -> usize {
    memchr::memchr3_iter(b',', b'{', b'[', text).count() + 1
}
