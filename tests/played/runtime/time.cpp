// The time of streams.  Each does one thing after the other; what a thing takes is played, when it ends is worked out.
//
// Where all is known at once, as for kernels, the stream only has a time until which it is busy.  Behind work that other
// ranks take part in, nothing is known until they have come: it queues up, and a thread of ours, the device, works it
// out, so that the rank's own threads may sleep.
#include "played.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <set>

namespace played {

std::recursive_mutex all;
static std::set<Stream *> waiting;  // those with unknown work
static pid_t device_of = 0;         // the process whose device thread runs

static void *be_the_device(void *) {
    pthread_setname_np(pthread_self(), "played-device");
    for (;;) {
        {
            std::lock_guard<std::recursive_mutex> lock(all);
            settle();
        }
        timespec nap = {0, 200000};
        nanosleep(&nap, nullptr);
    }
    return nullptr;
}

static void start_the_device() {
    if (device_of == getpid()) return;
    device_of = getpid();
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    pthread_t thread;
    pthread_create(&thread, nullptr, be_the_device, nullptr);
    pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

static ns end_of(Stream &stream, Work &work, ns &start) {
    start = std::max(stream.busy, work.issued);
    for (When &each : work.after) {
        if (each->at == UNKNOWN) return UNKNOWN;
        start = std::max(start, each->at.load());
    }
    return work.meeting ? work.meeting->end(start) : std::min(start + work.duration, NEVER);
}

void settle() {
    bool found = true;
    while (found) {
        found = false;
        for (auto each = waiting.begin(); each != waiting.end();) {
            Stream &stream = **each;
            while (!stream.unknown.empty()) {
                Work &work = stream.unknown.front();
                ns start, end = end_of(stream, work, start);
                if (end == UNKNOWN) break;
                if (work.action) work.action();
                work.end->start = start;
                stream.busy = work.end->at = end;
                stream.unknown.pop_front();
                found = true;
            }
            each = stream.unknown.empty() ? waiting.erase(each) : std::next(each);
        }
    }
}

When issue(Stream &stream, ns duration, std::vector<When> after, std::shared_ptr<Meeting> meeting, std::function<void()> action) {
    stream.unknown.push_back({now(), duration, std::move(after), std::move(meeting), std::move(action)});
    When end = stream.unknown.back().end;
    waiting.insert(&stream);
    settle();
    if (end->at == UNKNOWN) start_the_device();
    return end;
}

When tail(Stream &stream) {
    if (!stream.unknown.empty()) return stream.unknown.back().end;
    When when = std::make_shared<Moment>();
    when->at = std::max(stream.busy, now());
    return when;
}

bool over(const When &when) {
    if (when->at == UNKNOWN) settle();
    return when->at != UNKNOWN && when->at <= now();
}

void wait_for(const When &when) {
    for (;;) {
        ns left = 200000;
        {
            std::lock_guard<std::recursive_mutex> lock(all);
            if (over(when)) return;
            if (when->at != UNKNOWN) left = std::min(when->at - now(), 1000000000LL);
        }
        if (left > 0) {
            timespec nap = {left / 1000000000LL, left % 1000000000LL};
            nanosleep(&nap, nullptr);
        }
    }
}

}  // namespace played
