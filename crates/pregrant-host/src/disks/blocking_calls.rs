//! An image's own thread, for calls that a file system may not answer: its `open`, its length, its
//! `close`.
//!
//! ```text
//!   control thread --ask(call)--> this thread: the call, which sleeps as long as it takes --> Answer
//!                  '--Answer::wait: a moment-->  there  |  not yet: it goes on with others, and asks this answer again
//!                  '--Answer::give_up----------> what comes is dropped by this thread: a file that was opened too late is closed
//!                  '--Answer::want-------------> it is waited for again, where it has not come meanwhile
//!   anyone         --later(call)--> the same thread, and no one waits
//! ```
//! Calls are made one after the other, in the order in which they were asked. An answer that was
//! given up can be wanted again, so that the same request to a silent file system is one call
//! there, however often it comes.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long the control thread waits for what takes no time, as a rule.
const MOMENT: Duration = Duration::from_millis(100);

type Call = Box<dyn FnOnce() + Send>;

/// See the module. The thread ends after the last call that was asked, once all clones of this are
/// dropped.
#[derive(Clone)]
pub(super) struct BlockingCalls(Sender<Call>);

impl BlockingCalls {
    /// Starts the thread.
    ///
    /// # Errors
    /// There is none to be had.
    pub(super) fn start() -> std::io::Result<Self> {
        let (calls, asked) = channel::<Call>();
        std::thread::Builder::new()
            .name("image".into())
            .spawn(move || asked.iter().for_each(|call| call()))?;
        Ok(Self(calls))
    }

    /// Has a call made.
    pub(super) fn ask<T: Send + 'static>(&self, call: impl FnOnce() -> T + Send + 'static) -> Answer<T> {
        let place =
            Arc::new(Place { stage: Mutex::new(Stage::Asked { wanted: true }), came: Condvar::new() });
        let report = Arc::clone(&place);
        let call = move || {
            let value = call();
            let mut stage = report.lock();
            if matches!(*stage, Stage::Asked { wanted: true }) {
                *stage = Stage::Came(value);
                report.came.notify_all();
            } else {
                *stage = Stage::Over;
                drop(stage);
                drop(value);
            }
        };
        self.later(call);
        Answer { place, waited: false }
    }

    /// Has a call made that no one waits for.
    pub(super) fn later(&self, call: impl FnOnce() + Send + 'static) {
        // its thread ends after this is dropped, and not before
        let _ = self.0.send(Box::new(call));
    }
}

enum Stage<T> {
    Asked {
        wanted: bool,
    },
    Came(T),
    /// It was taken, or came when no one wanted it.
    Over,
}

struct Place<T> {
    stage: Mutex<Stage<T>>,
    came: Condvar,
}

impl<T> Place<T> {
    fn lock(&self) -> MutexGuard<'_, Stage<T>> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result of a call.
pub(super) struct Answer<T> {
    place: Arc<Place<T>>,
    waited: bool,
}

impl<T> Answer<T> {
    /// The result; None: there is none yet. The first time it waits a moment for it.
    pub(super) fn wait(&mut self) -> Option<T> {
        let moment = if std::mem::replace(&mut self.waited, true) { Duration::ZERO } else { MOMENT };
        let is_pending = |stage: &mut Stage<T>| matches!(stage, Stage::Asked { .. });
        let waited = self.place.came.wait_timeout_while(self.place.lock(), moment, is_pending);
        let (mut stage, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Self::take(&mut stage)
    }

    /// No one waits for it now. The result, if it has come.
    pub(super) fn give_up(&self) -> Option<T> {
        let mut stage = self.place.lock();
        if let Stage::Asked { wanted } = &mut *stage {
            *wanted = false;
        }
        Self::take(&mut stage)
    }

    /// It is wanted again. False: it came when it was not, or was taken.
    pub(super) fn want(&self) -> bool {
        match &mut *self.place.lock() {
            Stage::Asked { wanted } => {
                *wanted = true;
                true
            }
            Stage::Came(_) => true,
            Stage::Over => false,
        }
    }

    /// Whether the call has not ended.
    pub(super) fn is_pending(&self) -> bool {
        matches!(*self.place.lock(), Stage::Asked { .. })
    }

    fn take(stage: &mut Stage<T>) -> Option<T> {
        match std::mem::replace(stage, Stage::Over) {
            Stage::Came(value) => Some(value),
            other => {
                *stage = other;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    /// A call that ends when it is asked to, with something whose end can be observed.
    fn slow(thread: &BlockingCalls) -> (Answer<Dropped>, mpsc::Sender<()>, mpsc::Receiver<()>) {
        let (go, gone) = mpsc::channel();
        let (report, reported) = mpsc::channel();
        let answer = thread.ask(move || {
            let _ = gone.recv(); // or the test is over
            Dropped(report)
        });
        (answer, go, reported)
    }

    struct Dropped(mpsc::Sender<()>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    #[test]
    fn an_answer_is_waited_for_given_up_and_wanted_again() {
        let thread = BlockingCalls::start().unwrap();
        let (mut answer, go, dropped) = slow(&thread);
        assert!(answer.wait().is_none() && answer.is_pending());
        assert!(answer.give_up().is_none() && answer.want());
        go.send(()).unwrap();
        let value = loop {
            match answer.wait() {
                Some(value) => break value,
                None => std::thread::yield_now(),
            }
        };
        assert!(dropped.try_recv().is_err() && !answer.is_pending() && !answer.want());
        drop(value);

        let (answer, go, dropped) = slow(&thread);
        assert!(answer.give_up().is_none() && answer.is_pending());
        go.send(()).unwrap();
        dropped.recv().expect("an unclaimed result is dropped by the thread");
        assert!(!answer.want() && answer.give_up().is_none());
        // An answer that came while it was wanted goes to the call that gives it up.
        let (answer, go, _dropped) = slow(&thread);
        go.send(()).unwrap();
        while answer.is_pending() {
            std::thread::yield_now();
        }
        assert!(answer.give_up().is_some() && !answer.want());
    }
}
