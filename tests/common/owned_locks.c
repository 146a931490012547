/* tests/common/owned_locks.c - a mutex is unlocked by the thread that has locked it.
 *
 * The linker puts this in the place of pthread_mutex_unlock in every test program (--wrap).  A lock that one path forgets to take
 * is a race that a test meets by chance alone; that it is given back without being held shows every time.  glibc notes a mutex's
 * owner.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int __real_pthread_mutex_unlock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex);

int __wrap_pthread_mutex_unlock(pthread_mutex_t *mutex)
{
#ifdef __GLIBC__
    if (mutex->__data.__owner != gettid()) {
        fprintf(stderr, "a mutex is unlocked that %s\n",
                mutex->__data.__owner == 0 ? "nobody has locked" : "another thread has locked");
        abort();
    }
#endif
    return __real_pthread_mutex_unlock(mutex);
}
