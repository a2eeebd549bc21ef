//! A thread per image for calls that a file system may never answer: `open`, the length, `close`.
//!
//! ```text
//!   control thread --ask(call)--> this thread: the call, which sleeps as long as it takes --> Answer
//!                  '--Answer::wait: a moment-->  there  |  not yet: it goes on with others, and asks this answer again
//!                  '--Answer::give_up----------> what comes is dropped by this thread: a file that was opened too late is closed
//!                  '--Answer::want-------------> it is waited for again, where it has not come meanwhile
//!   anyone         --later(call)--> the same thread, and no one waits
//! ```
//! Calls are made one after the other, in the order of the requests. A caller that gave up an
//! answer can ask for it again, so a file system that hangs has one call pending, however often the
//! same request comes.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time that the control thread waits for calls that normally return at once.
const MOMENT: Duration = Duration::from_millis(100);

type Call = Box<dyn FnOnce() + Send>;

/// The sender of calls to the thread, which ends after the last call once all clones of this are
/// dropped.
#[derive(Clone)]
pub(super) struct BlockingCalls(Sender<Call>);

impl BlockingCalls {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// The thread cannot be created.
    pub(super) fn start() -> std::io::Result<Self> {
        let (calls, asked) = channel::<Call>();
        std::thread::Builder::new()
            .name("image".into())
            .spawn(move || asked.iter().for_each(|call| call()))?;
        Ok(Self(calls))
    }

    /// Queues a call and returns its future result.
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

    /// Queues a call whose result no one waits for.
    pub(super) fn later(&self, call: impl FnOnce() + Send + 'static) {
        // the thread ends only after this is dropped
        let _ = self.0.send(Box::new(call));
    }
}

enum Stage<T> {
    Asked {
        wanted: bool,
    },
    Came(T),
    /// The result was taken, or it arrived when no caller wanted it any more.
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

/// The future result of a call.
pub(super) struct Answer<T> {
    place: Arc<Place<T>>,
    waited: bool,
}

impl<T> Answer<T> {
    /// Returns the result, or None if the call has not ended. The first call of this waits up to
    /// [`MOMENT`].
    pub(super) fn wait(&mut self) -> Option<T> {
        let moment = if std::mem::replace(&mut self.waited, true) { Duration::ZERO } else { MOMENT };
        let is_pending = |stage: &mut Stage<T>| matches!(stage, Stage::Asked { .. });
        let waited = self.place.came.wait_timeout_while(self.place.lock(), moment, is_pending);
        let (mut stage, _) = waited.unwrap_or_else(PoisonError::into_inner);
        Self::take(&mut stage)
    }

    /// Gives up the result, and returns it if it has arrived already.
    pub(super) fn give_up(&self) -> Option<T> {
        let mut stage = self.place.lock();
        if let Stage::Asked { wanted } = &mut *stage {
            *wanted = false;
        }
        Self::take(&mut stage)
    }

    /// Asks for the result again after [`give_up`](Self::give_up). Returns false if it arrived
    /// meanwhile, or was taken.
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

    /// Returns true until the call has ended.
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

    /// Queues a call that ends on request, with a result whose drop can be observed.
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
        // An answer that came while it was wanted is returned by `give_up`.
        let (answer, go, _dropped) = slow(&thread);
        go.send(()).unwrap();
        while answer.is_pending() {
            std::thread::yield_now();
        }
        assert!(answer.give_up().is_some() && !answer.want());
    }
}
