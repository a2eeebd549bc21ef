//! The requests of a front to its back: features that its owner wants and the back offers.

use super::config::FrontConfig;
use super::regions::Granting;
use crate::net::features::BackFeatures;
use crate::net::path::{FrontNegotiation, Negotiation, OfPath};
use alloc::vec;
use alloc::vec::Vec;

paths!(with_paths {
    /// See the module. By default the front requests nothing.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Requested(Wanted, default) {}
});

impl Default for Requested {
    fn default() -> Self {
        Self::start()
    }
}

impl Requested {
    /// What a front requests of this back. `can_name`: the platform can name this domain's frames.
    pub fn of(config: &FrontConfig, back: &BackFeatures, can_name: bool) -> Self {
        let mut asked = Self::start();
        each_path!(Path => {
            let wanted = *OfPath::<Path>::path(config);
            *OfPath::<Path>::path_mut(&mut asked) = Path::asked(wanted, back, can_name);
        });
        each_path!(Path => {
            let own = *OfPath::<Path>::path(&asked);
            if Path::is_alone(own) {
                asked = Self::start();
                *OfPath::<Path>::path_mut(&mut asked) = own;
            }
        });
        asked
    }

    /// All of it, then what can be had with less memory, the best first: what a later path of the
    /// list gives up is given up last.
    pub fn smaller(self, back: &BackFeatures) -> Vec<Self> {
        let mut all = vec![self];
        each_path!(Path => {
            let before = core::mem::take(&mut all);
            for own in Path::smaller(*OfPath::<Path>::path(&self), back) {
                all.extend(before.iter().map(|asked| {
                    let mut asked = *asked;
                    *OfPath::<Path>::path_mut(&mut asked) = own;
                    asked
                }));
            }
        });
        all
    }

    /// Whether one of these paths is [given up last](FrontNegotiation::KEPT).
    pub fn is_kept(&self) -> bool {
        let mut is_kept = false;
        each_path!(Path => {
            is_kept |= Path::KEPT && *OfPath::<Path>::path(self) != <Path as Negotiation>::Wanted::default();
        });
        is_kept
    }

    /// Whether a path asks for [more than frames need](FrontNegotiation::is_extra).
    pub fn is_extra(&self) -> bool {
        let mut is_extra = false;
        each_path!(Path => is_extra |= Path::is_extra(*OfPath::<Path>::path(self)));
        is_extra
    }

    /// The same without that, of such a back.
    pub fn without_extra(self, back: &BackFeatures) -> Self {
        self.smaller(back).into_iter().find(|asked| !asked.is_extra()).unwrap_or(self)
    }

    /// How the front grants ordinary pages for these paths; None: any way.
    pub fn granting(&self) -> Option<Granting> {
        let mut granting = None;
        each_path!(Path => if granting != Some(Granting::Standing) {
            granting = Path::granting(*OfPath::<Path>::path(self)).or(granting);
        });
        granting
    }

    /// Whether a path sends its request over the control ring.
    pub fn needs_ctrl(&self) -> bool {
        let mut needs = false;
        each_path!(Path => needs |= Path::needs_ctrl(*OfPath::<Path>::path(self)));
        needs
    }

    /// Ordinary pages of a direction, of a vif with so many queues: as many as are `wanted`, if one
    /// of these paths moves frames in them without a grant operation; as few as slots have
    /// otherwise, which is 0.
    pub fn pages(&self, wanted: u32, back: &BackFeatures, queues: u32) -> u32 {
        let mut pages = 0;
        each_path!(Path => pages = pages.max(Path::pages(*OfPath::<Path>::path(self), back, queues)));
        pages.min(wanted)
    }

    /// Whether the back keeps ordinary pages mapped once it has seen them.
    pub fn keeps_seen(&self) -> bool {
        let mut keeps = false;
        each_path!(Path => keeps |= Path::keeps_seen(*OfPath::<Path>::path(self)));
        keeps
    }
}
