//! An image's own thread, for calls that a file system may not answer: its `open`, its length, its `close`.
//!
//! ```text
//!   control thread --ask(call)--> this thread: the call, which sleeps as long as it takes --> Answer
//!                  '--Answer::wait: a moment-->  there  |  not yet: it goes on with others, and asks this answer again
//! ```
//! Calls are made one after the other, in the order in which they were asked. What nobody waits for any more is dropped by this
//! thread when it comes: a file that was opened too late is closed.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// How long the control thread waits for what takes no time, as a rule.
const MOMENT: Duration = Duration::from_millis(100);

type Call = Box<dyn FnOnce() + Send>;

/// See the module. The thread ends after the last call that was asked, once this is dropped.
pub(super) struct Clerk(Sender<Call>);

impl Clerk {
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
        let (tell, told) = channel();
        let call = move || {
            let _ = tell.send(call()); // nobody waits for it any more
        };
        let _ = self.0.send(Box::new(call)); // it ends with this
        Answer { told, waited: false }
    }
}

/// What a call comes to.
pub(super) struct Answer<T> {
    told: Receiver<T>,
    waited: bool,
}

impl<T> Answer<T> {
    /// What it came to; None: nothing yet. The first time it waits a moment for it.
    pub(super) fn wait(&mut self) -> Option<T> {
        let moment = if std::mem::replace(&mut self.waited, true) { Duration::ZERO } else { MOMENT };
        self.told.recv_timeout(moment).ok()
    }
}
